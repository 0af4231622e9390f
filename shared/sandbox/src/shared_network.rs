//! A network for the commands of several slots, which reaches nothing outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shim::{Mode, Options, PrivateNetwork, Shim};

use crate::error::SandboxError;

/// A network that has only a loopback interface. It exists as long as a clone of this value or a command in it.
#[derive(Debug, Clone)]
pub struct SharedNetwork {
    holder: Arc<Shim>,
    hosts: PathBuf,
}

impl SharedNetwork {
    /// Creates a network in which `names` are names of the machine itself. `hosts` is the file that says so, which commands
    /// see as `/etc/hosts`. `program` is that of the slots.
    ///
    /// Fails if the machine refuses network namespaces, or if the file cannot be written.
    pub async fn create(program: &Path, hosts: PathBuf, names: &[String]) -> Result<Self, SandboxError> {
        let all: Vec<&str> =
            ["localhost", "forebay"].into_iter().chain(names.iter().map(String::as_str)).collect();
        let content = format!("127.0.0.1\t{}\n::1\tlocalhost\n", all.join(" "));
        fs::write(&hosts, content).map_err(|source| SandboxError::file("writing", &hosts, source))?;
        // It runs no command, so the mode that every machine allows is good enough.
        let network = Some(PrivateNetwork::New);
        let options = Options { network, mode: Some(Mode::Subreaper), ..Options::default() };
        let holder = Arc::new(Shim::start_with(program, &options).await?);
        Ok(Self { holder, hosts })
    }

    /// The process whose network it is.
    pub(crate) fn pid(&self) -> Result<u32, SandboxError> {
        self.holder.pid().ok_or(SandboxError::Shim(shim::ShimError::Gone))
    }

    pub(crate) fn hosts(&self) -> &Path {
        &self.hosts
    }
}
