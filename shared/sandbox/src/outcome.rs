//! How a command ended.

use std::time::{Duration, SystemTime};

use shim::{Over, SpawnErrorKind, Stream};

/// How a run went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The command never ran, and it is its own fault.
    NotStarted {
        /// What is wrong with it.
        why: NotStarted,
        /// The same with names.
        message: String,
    },
    /// The command ran, and no process of it is left.
    Ended(Ended),
}

/// What is wrong with a command that cannot be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotStarted {
    /// No such program, or its interpreter is missing.
    NotFound,
    /// The program is there but cannot be executed.
    NotExecutable,
    /// The working directory is missing, no folder, or outside of the input root.
    WorkingDirectory,
    /// Arguments and environment are larger than the kernel takes.
    TooLarge,
    /// An empty command, or a NUL byte in it.
    Invalid,
}

impl NotStarted {
    /// What a shim's failure means; `None` if it is not the command's fault.
    pub(crate) fn of(kind: SpawnErrorKind) -> Option<Self> {
        match kind {
            SpawnErrorKind::NotFound => Some(Self::NotFound),
            // A file in no format that the kernel executes gives "other".
            SpawnErrorKind::PermissionDenied | SpawnErrorKind::Other => Some(Self::NotExecutable),
            SpawnErrorKind::WorkingDirectory => Some(Self::WorkingDirectory),
            SpawnErrorKind::TooLarge => Some(Self::TooLarge),
            SpawnErrorKind::InvalidInput => Some(Self::Invalid),
            SpawnErrorKind::Resources => None,
        }
    }
}

/// How a command ended and what it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code; 128 plus the number of the signal that ended it.
    pub exit_code: i32,
    /// The signal that ended it, where that is known: a shell's 137 is no signal of its own.
    pub signal: Option<i32>,
    /// What made it end.
    pub cause: Cause,
    /// From its start until all its processes were dead.
    pub wall: Duration,
    /// User and system time of all its processes.
    pub cpu: Duration,
    /// The most memory it used at a time, page cache included, where a control group counts that; otherwise the
    /// largest resident set of one of its processes.
    pub peak_memory_bytes: u64,
    /// When it was started.
    pub started_at: SystemTime,
    /// When all its processes were dead.
    pub ended_at: SystemTime,
    /// The bytes in the file of its standard output.
    pub stdout_bytes: u64,
    /// The bytes in the file of its standard error.
    pub stderr_bytes: u64,
}

/// What made a command end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It ended by itself.
    Ended,
    /// Its timeout passed.
    TimedOut,
    /// [`crate::Control::kill`].
    Killed,
    /// It failed, and a process of it was killed for want of memory within its limit.
    OutOfMemory,
    /// It wrote more to this stream than it may: so many bytes, when that was seen.
    OutputTooLarge(Stream, u64),
    /// It used more than one of its [`crate::Limits`] allows.
    OverLimit(Over),
}
