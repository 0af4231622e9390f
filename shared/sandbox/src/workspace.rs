//! The sandbox and the limits of the builds in a workspace. Both are kept for many builds, together with tool servers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{getegid, geteuid};
use parking_lot::Mutex;
use shim::{Cause, Cores, Filter, Limit, Options, Over, Overlay, PrivateNetwork, Shim, User};

use crate::bubblewrap::{Bubblewrap, Network, PRIVATE, SlotNetwork};
use crate::cgroups::{Cgroups, CpuLimits, Group};
use crate::error::SandboxError;
use crate::own_parts::OwnParts;
use crate::shared_network::SharedNetwork;

/// Room in memory for the folders that are mounted on in an image.
const MOUNT_POINTS_BYTES: u64 = 1 << 20;

/// The user of this process.
fn own_user() -> User {
    User { uid: geteuid().as_raw(), gid: getegid().as_raw() }
}

/// How the builds of a worker are isolated from the machine and from each other.
#[derive(Debug, Clone)]
pub struct WorkspaceSandbox {
    pub bubblewrap: Bubblewrap,
    pub network: Network,
    /// A folder with programs of the worker, which builds can read.
    pub programs: PathBuf,
}

impl WorkspaceSandbox {
    /// The options of a shim whose commands can write to `places`, and to private folders in memory. All are folders
    /// that exist. Commands cannot replace them, and cannot write elsewhere in `folder`, which contains them.
    ///
    /// # Errors
    ///
    /// Fails if bubblewrap is not installed, or if the network of the services is gone.
    pub fn options(
        &self,
        folder: &Path,
        places: &[PathBuf],
        own: OwnParts<'_>,
    ) -> Result<Options, SandboxError> {
        let OwnParts { user, image, network, secrets: _ } = own;
        let overlay = image.and_then(|image| {
            // An image must not lead these paths elsewhere.
            let folders = vec![folder.to_owned(), self.programs.clone()];
            let written = image.writable_bytes.unwrap_or(0);
            let mount = image.overlay(user, folders)?;
            let owner = mount.owner.or_else(|| image.writable_bytes.map(|_| own_user()));
            let writable_bytes = Some(written.saturating_add(MOUNT_POINTS_BYTES));
            Some(Overlay { owner, writable_bytes, ..mount })
        });
        let joined = network.map(SharedNetwork::pid).transpose()?.map(PrivateNetwork::Of);
        Ok(Options {
            wrapper: self.bubblewrap.workspace(folder, places, &self.programs, self.network(network), own)?,
            overlay,
            user,
            inner_user: user.and(image).and_then(|image| image.user),
            filter: self.bubblewrap.filter.then_some(match self.network {
                Network::None if network.is_none() => Filter::Internet,
                Network::None | Network::Host | Network::Loopback => Filter::Escapes,
            }),
            tidy: PRIVATE.map(PathBuf::from).to_vec(),
            network: joined,
            shares_network: self.network == Network::Host || network.is_some(),
            kernel_deadline: true,
            ..Options::default()
        })
    }

    fn network<'a>(&self, shared: Option<&'a SharedNetwork>) -> SlotNetwork<'a> {
        match (shared, self.network) {
            (Some(network), _) => SlotNetwork::Shared { hosts: network.hosts() },
            (None, Network::Loopback | Network::None) => SlotNetwork::Own,
            (None, Network::Host) => SlotNetwork::Host,
        }
    }

    /// What services of its commands see of the machine: no more than these do.
    pub fn of_services(&self) -> Bubblewrap {
        self.bubblewrap.clone().hiding_private()
    }

    /// Checks whether this machine supports the sandbox; the error says why not and how to fix it.
    /// `program` is the executable of shims.
    ///
    /// # Errors
    ///
    /// Fails if bubblewrap is not installed, or the machine refuses the sandbox or its filters.
    pub async fn check(&self, program: &Path, folder: &Path) -> Result<(), SandboxError> {
        match Shim::start_with(program, &self.options(folder, &[], OwnParts::default())?).await {
            Ok(shim) => Ok(shim.stop().await?),
            Err(error) => {
                let network = self.network(None);
                let call =
                    self.bubblewrap.workspace(folder, &[], &self.programs, network, OwnParts::default())?;
                Bubblewrap::attempt(call)?;
                Err(error.into())
            }
        }
    }
}

/// Processes and threads of a workspace without a limit, if control groups can enforce it, for each processor of the machine, and
/// the least and the most: the kernel needs several processors for seconds to start and end many more, which slows down others.
const USUAL_PROCESSES: u64 = 768;
const USUAL_BOUNDS: [u64; 2] = [1024, 4096];
/// Processes of the shims in the group of a workspace, which do not count for its limit.
const SHIMS: u64 = 6;
/// Memory of these processes in bytes, which does not count either.
const SHIM_MEMORY: u64 = 32 << 20;

fn usual_processes() -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let [least, most] = USUAL_BOUNDS;
    USUAL_PROCESSES.saturating_mul(processors).clamp(least, most)
}

/// What all processes of a workspace may use together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkspaceBounds {
    pub memory_bytes: Option<u64>,
    /// Number of processes and threads.
    pub processes: Option<u64>,
    /// Enforced by control groups only.
    pub cpu: CpuLimits,
}

/// Limits on all processes of a workspace together. Control groups enforce them where this machine allows that;
/// elsewhere the shim does.
#[derive(Debug)]
pub struct WorkspaceLimits {
    group: Group,
    /// Whether only processes of the workspace run as its user.
    has_own_user: bool,
    bounds: Mutex<WorkspaceBounds>,
}

impl WorkspaceLimits {
    /// The limits of a workspace; `name` is unique on this machine, of letters, digits and hyphens. With a user of its own, the
    /// kernel limits its processes also without control groups.
    pub fn new(cgroups: &Cgroups, name: &str, has_own_user: bool) -> Self {
        Self {
            group: cgroups.group(name, None, &Cores::default(), true),
            has_own_user,
            bounds: Mutex::default(),
        }
    }

    /// The files through which a shim enters the control groups.
    pub fn join_files(&self) -> Vec<PathBuf> {
        self.group.join_files()
    }

    /// Before a command: returns the limits that the shim must enforce.
    ///
    /// # Errors
    ///
    /// Fails if a control group cannot be written.
    pub fn begin(&self, mut bounds: WorkspaceBounds) -> Result<shim::Limits, SandboxError> {
        bounds.processes = bounds.processes.or_else(|| self.group.has_processes().then(usual_processes));
        let memory = bounds.memory_bytes.map(|bytes| bytes.saturating_add(SHIM_MEMORY));
        let processes = bounds.processes.map(|count| count.saturating_add(SHIMS));
        self.group.begin_kept(memory, processes, bounds.cpu)?;
        *self.bounds.lock() = bounds;
        Ok(shim::Limits {
            memory_bytes: bounds.memory_bytes.filter(|_| !self.group.has_memory()),
            processes: bounds.processes.filter(|_| !self.group.has_processes()),
            // More, because the shim reports the limit.
            user_processes: processes.filter(|_| self.has_own_user && !self.group.has_processes()),
            ..shim::Limits::default()
        })
    }

    /// Processor time of all processes that ever were in the workspace, if control groups count it.
    pub fn cpu(&self) -> Option<Duration> {
        self.group.cpu()
    }

    /// Whether a process was refused since the command began.
    pub fn is_over_processes(&self) -> bool {
        self.group.is_over_processes()
    }

    /// After a command: whether a limit of the control groups stopped one of its processes.
    pub fn exceeded(&self) -> Option<Cause> {
        let bounds = *self.bounds.lock();
        if bounds.memory_bytes.is_some() && self.group.end().1 {
            return Some(Cause::OutOfMemory);
        }
        let allowed = bounds.processes.filter(|_| self.group.is_over_processes())?;
        let used = allowed.saturating_add(1);
        Some(Cause::OverLimit(Over { limit: Limit::Processes, allowed, used }))
    }
}
