//! A network for the commands of several slots, which reaches nothing outside.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shim::{Mode, Options, PrivateNetwork, Shim};

use crate::error::SandboxError;

/// A network that has only a loopback interface, as one of the commands in it sees it. It exists as long as a clone of this
/// value or a command in it.
#[derive(Debug, Clone)]
pub struct SharedNetwork {
    holder: Arc<Shim>,
    /// The folder with the files of names: one for the command, and one for each service.
    folder: PathBuf,
    hosts: PathBuf,
    address: Ipv4Addr,
}

impl SharedNetwork {
    /// Creates a network of a command and its services, of which each has its own loopback address: the first one that of the
    /// machine itself. `hosts` are the names of each service. Commands see a file of `folder`, which must exist and which
    /// only the owner of this process can write, as `/etc/hosts`. `program` is that of the slots.
    ///
    /// Fails if the machine refuses network namespaces, or if a file cannot be written.
    pub async fn create(program: &Path, folder: &Path, hosts: &[Vec<String>]) -> Result<Self, SandboxError> {
        for own in std::iter::once(None).chain((0..hosts.len()).map(Some)) {
            let path = hosts_file(folder, own);
            let written = fs::write(&path, hosts_text(hosts, own));
            written.map_err(|source| SandboxError::file("writing", &path, source))?;
        }
        // It runs no command, so the mode that every machine allows is good enough.
        let network = Some(PrivateNetwork::New);
        let options = Options { network, mode: Some(Mode::Subreaper), ..Options::default() };
        let holder = Arc::new(Shim::start_with(program, &options).await?);
        Ok(Self {
            holder,
            folder: folder.to_owned(),
            hosts: hosts_file(folder, None),
            address: Ipv4Addr::LOCALHOST,
        })
    }

    /// The same network as the service with this number sees it, counted from 0: `localhost` is its own address.
    #[must_use]
    pub fn of_service(&self, number: usize) -> Self {
        let hosts = hosts_file(&self.folder, Some(number));
        Self { hosts, address: address(number), ..self.clone() }
    }

    /// The process whose network it is.
    pub(crate) fn pid(&self) -> Result<u32, SandboxError> {
        self.holder.pid().ok_or(SandboxError::Shim(shim::ShimError::Gone))
    }

    pub(crate) fn hosts(&self) -> &Path {
        &self.hosts
    }

    /// The address that `localhost` means.
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.address
    }
}

/// The address of the service with this number.
fn address(number: usize) -> Ipv4Addr {
    let offset = u32::try_from(number).unwrap_or(u32::MAX);
    Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST).saturating_add(offset))
}

/// The file that the service with the number `own` sees, or the command.
fn hosts_file(folder: &Path, own: Option<usize>) -> PathBuf {
    folder.join(own.map_or_else(|| "etc.hosts".to_owned(), |own| format!("etc.hosts.{own}")))
}

/// The names of the machine for the service with the number `own`, or for the command. A server that listens on its
/// `localhost` is found by its name.
fn hosts_text(hosts: &[Vec<String>], own: Option<usize>) -> String {
    let own = own.unwrap_or_default();
    let line = |(number, names): (usize, &Vec<String>)| {
        let machine: &[&str] = if number == own { &["localhost", "forebay"] } else { &[] };
        let names: Vec<&str> = machine.iter().copied().chain(names.iter().map(String::as_str)).collect();
        format!("{}\t{}\n", address(number), names.join(" "))
    };
    let none = hosts.is_empty().then(|| "127.0.0.1\tlocalhost forebay\n".to_owned());
    // The address of version 6 is that of the machine itself.
    let of_version_6 = (own == 0).then(|| "::1\tlocalhost\n".to_owned());
    hosts.iter().enumerate().map(line).chain(none).chain(of_version_6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_an_address_and_is_localhost_for_itself() {
        let hosts = [vec!["db".to_owned(), "database".to_owned()], vec!["web".to_owned()]];
        let of_command = "127.0.0.1\tlocalhost forebay db database\n127.0.0.2\tweb\n::1\tlocalhost\n";
        assert_eq!([hosts_text(&hosts, None), hosts_text(&hosts, Some(0))], [of_command, of_command]);
        let of_web = "127.0.0.1\tdb database\n127.0.0.2\tlocalhost forebay web\n";
        assert_eq!(hosts_text(&hosts, Some(1)), of_web);
        assert_eq!(hosts_text(&[], None), "127.0.0.1\tlocalhost forebay\n::1\tlocalhost\n");
    }
}
