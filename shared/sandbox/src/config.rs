//! What a slot is, and what it is asked to run.

use std::path::PathBuf;
use std::time::Duration;

use shim::User;

use crate::bubblewrap::Bubblewrap;
use crate::cgroups::Cgroups;

/// How a command is kept from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    /// In namespaces that bubblewrap makes.
    Bubblewrap,
    /// By its user alone: for hosts that allow no namespaces.
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
    /// A name that no other slot on this machine has, in letters, digits and hyphens. Its control groups have it.
    pub name: String,
    /// The executable whose `main` calls [`shim::main`] when its first argument is `shim`.
    pub program: PathBuf,
    /// A folder for the input roots of this slot and nothing else: a command can see all that is in it. Made if
    /// missing, and made to belong to the executor.
    pub work: PathBuf,
    /// How commands are kept from the host.
    pub sandbox: Sandbox,
    /// How to start bubblewrap and what it shows of the system.
    pub bubblewrap: Bubblewrap,
    /// Whom the commands run as. It takes an executor that is root; `None` means its own user.
    pub user: Option<User>,
    /// The most processes and threads at a time: of each command where there are control groups, else of `user`
    /// on the whole machine.
    pub processes_max: Option<u64>,
    /// The control groups to use.
    pub cgroups: Cgroups,
}

/// What a command may use, all its processes together; what is absent is not limited. Whoever uses more is killed:
/// [`crate::Cause::OverLimit`]. What is not exact is looked at many times a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// User and system time.
    pub cpu: Option<Duration>,
    /// Bytes of memory. Exact where there is a control group for it ([`Cgroups::limits_memory`]), which also counts
    /// what the command leaves in `/tmp` of a sandbox; else looked at.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at a time. Exact where there is a control group for it ([`Cgroups::limits_processes`]).
    pub processes: Option<u64>,
    /// Files, folders and links added to the input root; and as many in `/tmp` and `/dev/shm` of a sandbox.
    pub files: Option<u64>,
    /// Bytes added to the input root; and as many in `/tmp` and `/dev/shm` of a sandbox.
    pub disk_bytes: Option<u64>,
}

/// A command to run.
#[derive(Debug, Clone)]
pub struct Run {
    /// The program and its arguments. A program with a slash is absolute or taken from the working directory; one
    /// without is looked up in the `PATH` of `env`, and without that in `/usr/local/bin:/usr/bin:/bin` (in
    /// `/bin:/usr/bin` where bubblewrap runs it alone).
    pub argv: Vec<String>,
    /// The whole environment. (Bubblewrap adds `PWD` where it runs the command alone.)
    pub env: Vec<(String, String)>,
    /// The working directory, relative to the input root and within it.
    pub cwd: PathBuf,
    /// The input root. It must be a direct child of [`SlotConfig::work`]; if it is always the same, so is its
    /// path as commands see it.
    pub root: PathBuf,
    /// Whether the input root becomes the command's `/`, and the command root of its own user namespace. It takes
    /// [`Sandbox::Bubblewrap`].
    pub root_is_input: bool,
    /// How long it may run; `None` means for ever. Nothing but the command's own time counts.
    pub timeout: Option<Duration>,
    /// How long after a polite SIGTERM everything is killed, at a timeout.
    pub kill_grace: Duration,
    /// The file that takes standard output. It is made, or emptied.
    pub stdout: PathBuf,
    /// The file that takes standard error. It is made, or emptied.
    pub stderr: PathBuf,
    /// The most bytes that the command may write to one of its outputs. The files are looked at several times a
    /// second, and cut to this length at the end.
    pub output_bytes_max: u64,
    /// The most memory it may use together with what it leaves in `/tmp`. It has no effect where there is no
    /// control group for it ([`Cgroups::limits_memory`]).
    pub memory_bytes_max: Option<u64>,
    /// What it may use: where that is less than `memory_bytes_max`, too much of it is its own fault.
    pub limits: Limits,
}
