//! Executors on separate machines: they share no folder with other processes.

use std::{
    fs,
    ops::{Deref, DerefMut},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use crate::{Farm, Link, SOON, ServiceProcess};

/// An executor with its own data folder, which fetches blobs from the farm's gateway. Killed when dropped.
#[derive(Debug)]
pub struct Machine {
    name: String,
    data: PathBuf,
    process: ServiceProcess,
}

impl Machine {
    /// Name of the machine. The working directories of its actions have `/machines/NAME/` in their path if
    /// they are not sandboxed.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns whether an action with this working directory runs here.
    pub fn has(&self, working_directory: &str) -> bool {
        Path::new(working_directory.trim()).starts_with(&self.data)
    }
}

impl Deref for Machine {
    type Target = ServiceProcess;

    fn deref(&self) -> &ServiceProcess {
        &self.process
    }
}

impl DerefMut for Machine {
    fn deref_mut(&mut self) -> &mut ServiceProcess {
        &mut self.process
    }
}

impl Farm {
    /// Starts an executor on a machine of this name; a previous one of that name must be dead, and
    /// leaves its disk behind.
    pub async fn machine(&self, name: &str, env: &[(&str, &str)]) -> Machine {
        let mut machine = self.machine_unready(name, env);
        machine.ready(SOON).await;
        machine
    }

    /// Like [`Self::machine`], with its connection to nats-server through this link.
    pub async fn machine_behind(&self, link: &Link, name: &str, env: &[(&str, &str)]) -> Machine {
        let url = link.url();
        let env: Vec<(&str, &str)> =
            [("FOREBAY_NATS_URL", url.as_str())].into_iter().chain(env.iter().copied()).collect();
        self.machine(name, &env).await
    }

    /// Like [`Self::machine`], without waiting for it.
    pub fn machine_unready(&self, name: &str, env: &[(&str, &str)]) -> Machine {
        let data = self.folder().join("machines").join(name);
        fs::create_dir_all(&data).expect("the folder of a machine");
        // Readable by the user that actions run as.
        for folder in [self.folder().join("machines"), data.clone()] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("our own folder");
        }
        let (place, cas) = (data.display().to_string(), self.grpc_url());
        let own = [("FOREBAY_DATA", place.as_str()), ("FOREBAY_CAS_URL", cas.as_str())];
        let env: Vec<(&str, &str)> = own.into_iter().chain(env.iter().copied()).collect();
        let process = self.start_unready("executor", &env);
        Machine { name: name.to_owned(), data, process }
    }

    /// Opens a connection to the first nats-server that can be cut.
    pub async fn link(&self) -> Link {
        Link::start(self.servers.nats_port(0)).await
    }
}
