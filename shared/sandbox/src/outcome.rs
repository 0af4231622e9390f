use std::time::{Duration, SystemTime};

use shim::{Cause, SpawnErrorKind, Switches};

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The command never ran because of its own fault.
    NotStarted {
        why: NotStarted,
        /// The same as text, with names.
        message: String,
    },
    /// The command ran, and all its processes are dead.
    Ended(Ended),
}

/// Why a command cannot be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotStarted {
    /// The program or its interpreter does not exist.
    NotFound,
    /// The program exists but cannot be executed.
    NotExecutable,
    /// The working directory is missing, not a folder, or outside the input root.
    WorkingDirectory,
    /// Arguments and environment exceed the kernel's limit.
    TooLarge,
    /// An empty command, or a NUL byte in it.
    Invalid,
}

impl NotStarted {
    /// The reason for a shim's failure; `None` if it is not the command's fault.
    pub(crate) fn of(kind: SpawnErrorKind) -> Option<Self> {
        match kind {
            SpawnErrorKind::NotFound => Some(Self::NotFound),
            // A file in a format that the kernel cannot execute is reported as "other".
            SpawnErrorKind::PermissionDenied | SpawnErrorKind::Other => Some(Self::NotExecutable),
            SpawnErrorKind::WorkingDirectory => Some(Self::WorkingDirectory),
            SpawnErrorKind::TooLarge => Some(Self::TooLarge),
            SpawnErrorKind::InvalidInput => Some(Self::Invalid),
            SpawnErrorKind::Resources => None,
        }
    }
}

/// How a command ended, and its usage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code, or 128 plus the number of the signal that killed it.
    pub exit_code: i32,
    /// The signal that killed it, if known: a shell's exit code 137 is not a signal of the shell.
    pub signal: Option<i32>,
    pub cause: Cause,
    /// From its start until all its processes were dead.
    pub wall: Duration,
    /// User and system time of all its processes.
    pub cpu: Duration,
    /// Peak memory including the page cache, if a control group counts it; otherwise the largest resident set of
    /// one of its processes.
    pub peak_memory_bytes: u64,
    /// Context switches of all its processes.
    pub switches: Switches,
    pub started_at: SystemTime,
    /// When all its processes were dead.
    pub ended_at: SystemTime,
    /// Size of the standard output file.
    pub stdout_bytes: u64,
    /// Size of the standard error file.
    pub stderr_bytes: u64,
}
