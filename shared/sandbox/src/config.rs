//! The configuration of a slot, and the description of a command to run.

use std::path::PathBuf;
use std::time::Duration;

use shim::{Cores, Deadline, User};
use tokio::sync::watch;

use crate::bubblewrap::Bubblewrap;
use crate::cgroups::Cgroups;
use crate::image_root::ImageRoot;
use crate::shared_network::SharedNetwork;

/// How a command is isolated from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    /// By namespaces that bubblewrap creates.
    Bubblewrap,
    /// By the command's user alone: for hosts that allow no namespaces.
    None,
}

impl Sandbox {
    /// Its name in the settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bubblewrap => "bubblewrap",
            Self::None => "none",
        }
    }
}

/// One slot of an executor.
#[derive(Debug, Clone)]
pub struct SlotConfig {
    /// A name that is unique on this machine, of letters, digits and hyphens. Its control groups use it.
    pub name: String,
    /// The executable whose `main` calls [`shim::main`] when its first argument is `shim`.
    pub program: PathBuf,
    /// A folder that contains only the input roots of this slot: a command can see everything in it. Created if
    /// missing, and owned by the executor.
    pub work: PathBuf,
    /// How commands are isolated from the host.
    pub sandbox: Sandbox,
    /// How to start bubblewrap, and which parts of the host are visible.
    pub bubblewrap: Bubblewrap,
    /// The user that commands run as. Requires an executor that is root; `None` means the executor's own user.
    pub user: Option<User>,
    /// Maximum number of simultaneous processes and threads: of each command if there are control groups, otherwise
    /// of `user` on the whole machine.
    pub processes_max: Option<u64>,
    /// The control groups to use.
    pub cgroups: Cgroups,
    /// The processors and the memory that its commands use. With [`Cgroups::with_cpuset`] they cannot use others;
    /// otherwise they start there.
    pub cores: Cores,
    /// Whether each command has a sandbox by itself, in which it sees nothing of the slot's folder but its input root.
    pub is_bare: bool,
    /// The network that its commands share with those of other slots, which requires [`Sandbox::Bubblewrap`]. `None` gives
    /// the slot a network of its own.
    pub network: Option<SharedNetwork>,
    /// When all processes of its commands must be dead, also if their owner is stopped then. It moves as long as the owner
    /// may go on. `None` means never.
    pub lease: Option<watch::Receiver<Deadline>>,
}

/// Limits on the usage of all processes of a command together; an absent limit does not apply. A command that exceeds
/// a limit is killed: [`crate::Cause::OverLimit`]. Limits that are not exact are checked many times per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// User and system time.
    pub cpu: Option<Duration>,
    /// Bytes of memory. Exact with a control group ([`Cgroups::limits_memory`]), which also counts files of the
    /// command in `/tmp` of a sandbox; otherwise measured.
    pub memory_bytes: Option<u64>,
    /// Simultaneous processes and threads. Exact with a control group ([`Cgroups::limits_processes`]).
    pub processes: Option<u64>,
    /// Number of files, folders and links added to the input root; the same number again in `/tmp` and
    /// `/dev/shm` of a sandbox.
    pub files: Option<u64>,
    /// Bytes added to the input root; the same number again in `/tmp` and `/dev/shm` of a sandbox.
    pub disk_bytes: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct Run {
    /// The program and its arguments. A program with a slash is absolute or relative to the working directory; one
    /// without is searched in the `PATH` of `env`, and without that in `/usr/local/bin:/usr/bin:/bin` (in
    /// `/bin:/usr/bin` if bubblewrap runs only this command).
    pub argv: Vec<String>,
    /// The whole environment. (Bubblewrap adds `PWD` if it runs only this command.)
    pub env: Vec<(String, String)>,
    /// The working directory, relative to the input root and within it.
    pub cwd: PathBuf,
    /// The input root. It must be a direct child of [`SlotConfig::work`]; if it is always the same, so is its path
    /// as commands see it.
    pub root: PathBuf,
    /// Whether the input root becomes the command's `/`, and the command becomes root of its own
    /// user namespace. Requires [`Sandbox::Bubblewrap`].
    pub root_is_input: bool,
    /// The image whose files the command sees instead of those of the host. Requires [`Sandbox::Bubblewrap`].
    pub image: Option<ImageRoot>,
    /// Device nodes of the host that the command can use, at the same paths. A sandbox with any serves only this command.
    pub devices: Vec<PathBuf>,
    /// Whether the command shares the network of the host, in a sandbox that serves only this command. Without a
    /// sandbox, all commands share it.
    pub shares_network: bool,
    /// Maximum run time; `None` means unlimited. Only the command's own time counts.
    pub timeout: Option<Duration>,
    /// Time between SIGTERM and the kill of all processes, at a timeout.
    pub kill_grace: Duration,
    /// The file that receives standard output. It is created or emptied.
    pub stdout: PathBuf,
    /// The file that receives standard error. It is created or emptied.
    pub stderr: PathBuf,
    /// Maximum bytes that the command may write to each output. The files are checked several times per second, and
    /// truncated to this length at the end.
    pub output_bytes_max: u64,
    /// Maximum memory, including files in `/tmp`. It has no effect without a control
    /// group for memory ([`Cgroups::limits_memory`]).
    pub memory_bytes_max: Option<u64>,
    /// Limits of the command: if its memory limit is lower than `memory_bytes_max`, exceeding it is
    /// the command's own fault.
    pub limits: Limits,
}
