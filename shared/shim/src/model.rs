//! What is asked of a shim and what it tells.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use nix::time::{ClockId, clock_gettime};

/// One command to run: its standard input is `/dev/null`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The program and its arguments. A program without a slash is looked up in the `PATH` of `env`.
    pub argv: Vec<String>,
    /// The whole environment: nothing is inherited from the worker or the shim.
    pub env: Vec<(String, String)>,
    /// The working directory.
    pub cwd: PathBuf,
    /// When everything is killed unless it is renewed; `None` means never.
    pub deadline: Option<Deadline>,
}

/// A moment in milliseconds of `CLOCK_BOOTTIME`, which no clock step moves and which goes on in suspend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(u64);

impl Deadline {
    /// One that does not come.
    pub const NEVER: Self = Self(u64::MAX);

    /// This very moment.
    pub fn now() -> Self {
        // The clock exists since Linux 2.6.39; without it every deadline has passed, which is the safe side.
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::MAX, Duration::from);
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

    /// Milliseconds of `CLOCK_BOOTTIME`.
    pub fn as_millis(self) -> u64 {
        self.0
    }

    /// How long until then; zero when it has passed.
    pub fn remaining(self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(Self::now().0))
    }

    /// Whether it has come.
    pub fn has_passed(self) -> bool {
        self <= Self::now()
    }
}

/// A moment of `CLOCK_BOOTTIME`, which all processes of a machine share whatever time of day they see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub(crate) Duration);

impl Moment {
    /// This very moment.
    pub fn now() -> Self {
        Self(clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from))
    }

    /// What the time of day was then, as this process sees it.
    pub fn system_time(self) -> SystemTime {
        SystemTime::now() - Self::now().0.saturating_sub(self.0)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Which of a command's two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What happens to a command, in order: `Started`, any `Output`, `Exited`; or `SpawnFailed` alone; or, when
/// its deadline had passed before it could start, `Exited` alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The command runs.
    Started {
        /// Its process id as the shim sees it: the host's in [`Mode::Subreaper`], the namespace's otherwise.
        pid: u32,
        /// When it was started.
        at: Moment,
    },
    /// Output, at most 64 KiB at a time, in the order in which the shim read it.
    Output {
        /// Where it was written to.
        stream: Stream,
        /// The bytes as written.
        data: Bytes,
    },
    /// The command ended and no process that it started is left, but for what
    /// [`Shim::run_and_keep`](crate::Shim::run_and_keep) leaves alive.
    Exited(Exit),
    /// The command could not be started.
    SpawnFailed {
        /// Whose fault it is.
        kind: SpawnErrorKind,
        /// What happened to what.
        message: String,
    },
}

/// How a command ended and what it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit code of the command's own process, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// What made it end.
    pub cause: Cause,
    /// From its start until all was dead.
    pub wall: Duration,
    /// User and system time of all its processes.
    pub cpu: Duration,
    /// The largest resident set of any one of its processes, in bytes. Never less than the shim's own (a few
    /// MB): the kernel carries that over into a process that was spawned without copying memory.
    pub peak_memory_bytes: u64,
}

/// What the processes of a command used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measured {
    /// User and system time since the command's start.
    pub cpu: Duration,
    /// The resident sets of all that live, together; what they share counts for each.
    pub memory_bytes: u64,
}

/// What a command may use, all its processes together. What is absent is not limited. Whoever uses more is killed with all
/// that it started, and its end says so: [`Cause::OverLimit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// User and system time.
    pub cpu: Option<Duration>,
    /// Bytes of memory that are theirs alone, and of what they put into the private folders
    /// ([`Options::tidy`](crate::Options::tidy)).
    pub memory_bytes: Option<u64>,
    /// Processes and threads at a time.
    pub processes: Option<u64>,
    /// Bytes in the private folders, and in files without a name that are open.
    pub disk_bytes: Option<u64>,
    /// Files in the private folders.
    pub files: Option<u64>,
    /// Bytes of any one file (`RLIMIT_FSIZE`), also of those that take its outputs. Not told apart from a failure of the
    /// command's own: who says it is to look at the file.
    pub file_bytes: Option<u64>,
    /// Processes and threads of its user on the whole machine (`RLIMIT_NPROC`). Not told apart either.
    pub user_processes: Option<u64>,
}

/// One of the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Processor time, in milliseconds.
    Cpu,
    /// Memory, in bytes.
    Memory,
    /// Processes and threads.
    Processes,
    /// Bytes in files.
    Disk,
    /// Files and folders.
    Files,
}

/// A limit that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Over {
    /// Which.
    pub limit: Limit,
    /// How much of it was allowed, in its unit.
    pub allowed: u64,
    /// How much was used when that was seen.
    pub used: u64,
}

/// What made a command end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It ended by itself (or something other than the shim killed it).
    Ended,
    /// [`Control::kill`](crate::Control::kill), whether it heeded SIGTERM or not.
    Killed,
    /// Its deadline passed.
    Deadline,
    /// It used more than one of its [`Limits`] allows.
    OverLimit(Over),
}

/// Why a command could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnErrorKind {
    /// No such program, or its interpreter is missing.
    NotFound,
    /// The program is not executable.
    PermissionDenied,
    /// The working directory is missing or closed to us.
    WorkingDirectory,
    /// Arguments and environment are larger than the kernel takes.
    TooLarge,
    /// An empty command, or a NUL byte in an argument, a variable or a path.
    InvalidInput,
    /// The machine is short of processes, memory or file descriptors: not the command's fault.
    Resources,
    /// Anything else, such as a file that is no program.
    Other,
}

/// How a shim holds on to the processes of its commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It is the first process of a PID namespace: the kernel kills all with it.
    PidNamespace,
    /// It adopts orphans and finds its descendants in `/proc`; a guardian does the same should it die.
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

    /// The mode of that name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::PidNamespace, Self::Subreaper].into_iter().find(|mode| mode.name() == name)
    }
}
