//! Commands for a shim, and the events that it reports.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use invariant::Present as _;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// One command to run: its standard input is `/dev/null`, unless [`Files::stdin`](crate::Files::stdin) is another file.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The program and its arguments. A program without a slash is searched in the `PATH` of `env`.
    pub argv: Vec<String>,
    /// The whole environment: the command inherits no variables from the worker or the shim.
    pub env: Vec<(String, String)>,
    #[serde(with = "path_bytes")]
    pub cwd: PathBuf,
    /// When everything is killed unless the deadline is renewed; `None` means never.
    pub deadline: Option<Deadline>,
}

impl fmt::Debug for Command {
    /// Variables without their values: some are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.env.iter().map(|(name, _)| name).collect();
        let Self { argv, env: _, cwd, deadline } = self;
        f.debug_struct("Command")
            .field("argv", argv)
            .field("env", &names)
            .field("cwd", cwd)
            .field("deadline", deadline)
            .finish()
    }
}

/// A moment in milliseconds of `CLOCK_BOOTTIME`, which clock adjustments do not move and
/// which continues during suspend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Deadline(u64);

impl Deadline {
    /// A deadline that never passes.
    pub const NEVER: Self = Self(u64::MAX);

    pub fn now() -> Self {
        // The clock exists since Linux 2.6.39; without it every deadline has passed, which is the safe side.
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
        let now = now.present_or(Duration::MAX, "the system has no CLOCK_BOOTTIME");
        Self(millis(now))
    }

    /// The moment `duration` from now.
    pub fn after(duration: Duration) -> Self {
        Self(Self::now().0.saturating_add(millis(duration)))
    }

    /// The moment at this many milliseconds of `CLOCK_BOOTTIME`.
    pub fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    pub fn as_millis(self) -> u64 {
        self.0
    }

    /// Time left until then; zero when it has passed.
    pub fn remaining(self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(Self::now().0))
    }

    /// Whether the deadline has passed.
    pub fn has_passed(self) -> bool {
        self <= Self::now()
    }
}

/// A moment of `CLOCK_BOOTTIME`, which all processes of a machine share regardless of their time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(pub(crate) Duration);

impl Moment {
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
        Self(now.present("the system has no CLOCK_BOOTTIME"))
    }

    /// The system time at that moment, from this process's view.
    pub fn system_time(self) -> SystemTime {
        SystemTime::now() - Self::now().0.saturating_sub(self.0)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// One of a command's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// The events of a command, in order: `Started`, any number of `Output`, `Exited`; or only `SpawnFailed`; or, if its
/// deadline had passed before it could start, only `Exited`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    Started {
        /// Its process id as the shim sees it: the host's in [`Mode::Subreaper`], the namespace's otherwise.
        pid: u32,
        at: Moment,
    },
    /// Output, at most 64 KiB at a time, in the order in which the shim read it.
    // Sent in frames of its own, without an encoding.
    #[serde(skip)]
    Output { stream: Stream, data: Bytes },
    /// The command ended and all its processes are dead, except the survivors of a command
    /// that was started by [`Shim::run_and_keep`](crate::Shim::run_and_keep).
    Exited(Exit),
    SpawnFailed {
        kind: SpawnErrorKind,
        /// Description of the failed operation and its cause.
        message: String,
    },
}

/// How a command ended, and its usage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code of the command's own process, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it, if any.
    pub signal: Option<i32>,
    pub cause: Cause,
    /// From its start until all its processes were dead.
    pub wall: Duration,
    /// User and system time of all its processes.
    pub cpu: Duration,
    /// The largest resident set of a single process, in bytes. Never less than the shim's own (a few MB): the kernel
    /// carries that over into a process that was spawned without copying memory.
    pub peak_memory_bytes: u64,
    /// Context switches of all its processes.
    pub switches: Switches,
}

/// How often the kernel switched from the processes of a command to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Switches {
    /// A process gave up the processor, to wait for something.
    pub voluntary: u64,
    /// The processor was given to another process although this one could go on.
    pub involuntary: u64,
}

impl std::ops::AddAssign for Switches {
    fn add_assign(&mut self, other: Self) {
        self.voluntary = self.voluntary.saturating_add(other.voluntary);
        self.involuntary = self.involuntary.saturating_add(other.involuntary);
    }
}

/// Usage of the processes of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Measured {
    /// User and system time since the command's start.
    pub cpu: Duration,
    /// The sum of all resident sets in bytes; shared pages count once per process.
    pub memory_bytes: u64,
}

/// Limits on the usage of all processes of a command together. An absent limit does not apply. A command that exceeds
/// a limit is killed with all its processes, and ends with [`Cause::OverLimit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// User and system time.
    pub cpu: Option<Duration>,
    /// Bytes of private memory, including files in the private folders ([`Options::tidy`](crate::Options::tidy)).
    pub memory_bytes: Option<u64>,
    /// Number of simultaneous processes and threads.
    pub processes: Option<u64>,
    /// Bytes in the private folders, and in open files without a name.
    pub disk_bytes: Option<u64>,
    /// Number of files in the private folders.
    pub files: Option<u64>,
    /// Maximum bytes of a single file (`RLIMIT_FSIZE`), including output files. Exceeding it looks like a failure of
    /// the command: to detect it, check the size of the file.
    pub file_bytes: Option<u64>,
    /// Processes and threads of its user on the whole machine (`RLIMIT_NPROC`). Exceeding it also looks like a
    /// failure of the command.
    pub user_processes: Option<u64>,
}

/// The kind of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// Processor time, in milliseconds.
    Cpu,
    /// Memory, measured in bytes.
    Memory,
    /// Number of processes and threads.
    Processes,
    Disk,
    /// Number of files and folders.
    Files,
}

/// A limit that a command exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Over {
    pub limit: Limit,
    /// The allowed amount, in the unit of the limit.
    pub allowed: u64,
    /// The amount that was measured.
    pub used: u64,
}

/// Why a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// It exited, or something other than its owner killed it.
    Ended,
    /// [`Control::kill`](crate::Control::kill), whether it reacted to SIGTERM or not.
    Killed,
    /// Its deadline passed, or, in a sandbox, its timeout.
    Deadline,
    /// It exceeded one of its [`Limits`].
    OverLimit(Over),
    /// It failed, and one of its processes was killed because memory ran out within its limit. Only a sandbox with
    /// control groups detects this.
    OutOfMemory,
    /// It wrote more to this stream than allowed: this many bytes when it was detected. Only a sandbox limits output.
    OutputTooLarge(Stream, u64),
}

/// Why a command could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpawnErrorKind {
    /// The program or its interpreter does not exist.
    NotFound,
    /// The program is not executable.
    PermissionDenied,
    /// The working directory is missing or cannot be entered.
    WorkingDirectory,
    /// Arguments and environment exceed the kernel's limit.
    TooLarge,
    /// An empty command, or a NUL byte in an argument, a variable or a path.
    InvalidInput,
    /// The machine is short of processes, memory or file descriptors: not the command's fault.
    Resources,
    /// Any other error, for example a file that is not a program.
    Other,
}

/// How a shim tracks the processes of its commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// The shim is the first process of a PID namespace: the kernel kills all processes with it.
    PidNamespace,
    /// The shim adopts orphans and finds its descendants in `/proc`; if it dies, a guardian does the same.
    Subreaper,
}

impl Mode {
    /// Its name on the shim's command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PidNamespace => "pid-namespace",
            Self::Subreaper => "subreaper",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::PidNamespace, Self::Subreaper].into_iter().find(|mode| mode.name() == name)
    }
}

/// The form of a path between worker and shim: serde's own accepts only UTF-8.
mod path_bytes {
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        OsString::deserialize(deserializer).map(PathBuf::from)
    }
}
