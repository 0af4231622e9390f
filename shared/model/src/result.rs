//! Results of builds: outcome, reason, outputs and console output.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{JobResult, Occupancy, OutputFile, OutputNotKept, ToolFacts};

/// Maximum length in characters of a message for people, which may quote long text sent by a client.
const BRIEF_MAX: usize = 1000;

/// Shortens `text` to a length that fits into a record.
pub fn brief(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(BRIEF_MAX) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Result of a build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BuildResult {
    /// How the build ended.
    pub outcome: Outcome,
    /// Why the build did not succeed; absent if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Exit code of the command; absent if it did not exit on its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Number of the signal that killed the command; absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Time when the process of the command was started, in microseconds since the Unix epoch; absent if it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_started_at_us: Option<u64>,
    /// Wall-clock run time of the command in seconds.
    #[serde(default)]
    pub wall_seconds: f64,
    /// CPU time in seconds, user and system, of all its processes.
    #[serde(default)]
    pub cpu_seconds: f64,
    /// Peak resident memory in bytes of its largest process.
    #[serde(default)]
    pub peak_memory_bytes: u64,
    /// ESU occupied for each executor type, averaged over the run.
    #[serde(default, skip_serializing_if = "Occupancy::is_empty")]
    pub usage: Occupancy,
    /// Part of `usage` that its actions occupied on executors; absent without any, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Occupancy::is_empty")]
    pub on_executors: Occupancy,
    /// Seconds spent preparing the workspace, not part of `wall_seconds`; absent if there was nothing to prepare.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preparation_seconds: Option<f64>,
    /// Output files that the output globs matched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputFile>,
    /// Output globs that match no kept file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs_missing: Vec<String>,
    /// Files that match an output glob and cannot be kept: the first 100 by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs_not_kept: Vec<OutputNotKept>,
    /// Total number of files that match an output glob and cannot be kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub outputs_not_kept_count: u64,
    /// Result of the job; absent for a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Box<JobResult>>,
    /// What Bazel reported of its calls; absent if the build made none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<Box<ToolFacts>>,
    /// Sizes and location of the console output.
    #[serde(default)]
    pub log: LogSummary,
}

impl BuildResult {
    /// Creates a result for a build that ended without a run.
    pub fn without_run(outcome: Outcome, code: ReasonCode, message: impl Into<String>) -> Self {
        Self {
            outcome,
            reason: Some(Reason { code, message: message.into() }),
            exit_code: None,
            signal: None,
            command_started_at_us: None,
            wall_seconds: 0.0,
            cpu_seconds: 0.0,
            peak_memory_bytes: 0,
            usage: Occupancy::default(),
            on_executors: Occupancy::default(),
            preparation_seconds: None,
            outputs: Vec::new(),
            outputs_missing: Vec::new(),
            outputs_not_kept: Vec::new(),
            outputs_not_kept_count: 0,
            job: None,
            tool: None,
            log: LogSummary::default(),
        }
    }
}

/// Outcome of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The command exited with 0.
    Succeeded,
    /// The command failed or could not be started.
    Failed,
    /// The build ran longer than its timeout.
    TimedOut,
    /// The build was cancelled by a user.
    Cancelled,
    /// The build waited longer than its queue timeout.
    Expired,
    /// Workers were lost until all attempts were used up.
    Lost,
    /// The request was rejected.
    Rejected,
}

impl Outcome {
    /// All outcomes, in declaration order.
    pub const ALL: [Self; 7] = [
        Self::Succeeded,
        Self::Failed,
        Self::TimedOut,
        Self::Cancelled,
        Self::Expired,
        Self::Lost,
        Self::Rejected,
    ];

    /// Name in messages and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Lost => "lost",
            Self::Rejected => "rejected",
        }
    }

    /// Exit code of a `forebay` command that waited for the build.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Succeeded => 0,
            Self::Failed | Self::TimedOut | Self::Lost => 1,
            Self::Rejected => 2,
            Self::Cancelled | Self::Expired => 3,
        }
    }
}

/// Why a build did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    /// Reason code, for programs.
    pub code: ReasonCode,
    /// Description of the error, for people.
    pub message: String,
}

impl Reason {
    /// Shortens the message to a length that fits into a record.
    #[must_use]
    pub fn brief(self) -> Self {
        Self { code: self.code, message: brief(self.message) }
    }
}

/// Why a build did not succeed, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReasonCode {
    /// The command exited with a code other than 0, or was killed by a signal.
    CommandFailed,
    /// The command could not be started.
    CommandNotStarted,
    /// A service of the command could not be started, was not ready in time, or ended before the command.
    ServiceFailed,
    /// A secret of the build is missing on its worker, or cannot be used as it was asked for.
    SecretUnavailable,
    /// Tasks of the job failed.
    TasksFailed,
    /// The workspace could not be prepared: the folder, revision or archive is missing, or its digest differs.
    ContextUnavailable,
    /// The worker's disk, or the store, is full.
    DiskFull,
    /// An output file could not be kept.
    OutputNotKept,
    /// An output glob matched no kept file, and the request has `require_outputs`.
    OutputMissing,
    /// The build used more memory than its workspace may use.
    OutOfMemory,
    /// The build had more processes and threads than its workspace may have.
    TooManyProcesses,
    /// The files of the build were larger than its workspace may be.
    TooMuchDisk,
    /// The build printed more than it may.
    TooMuchOutput,
    /// The kernel killed the build because the worker's machine ran out of memory.
    WorkerOutOfMemory,
    /// The build ran longer than its timeout.
    RunningTooLong,
    /// The build waited longer than its queue timeout.
    QueuedTooLong,
    /// The build was cancelled by a user.
    Cancelled,
    /// The worker's lease expired: the worker died, hung or was disconnected.
    LeaseExpired,
    /// The worker was drained before the build ended.
    WorkerDrained,
    /// The worker could not run the build because of an internal fault.
    WorkerFault,
    /// The worker could not reach a gateway of the farm to run the tasks of a job.
    GatewayUnreachable,
    /// The worker could not reach the farm's store.
    StoreUnreachable,
    /// The request is invalid.
    InvalidRequest,
}

impl fmt::Display for ReasonCode {
    /// Writes the name in messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Sizes and location of a build's console output.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct LogSummary {
    /// Bytes written to stdout.
    pub stdout_bytes: u64,
    /// Bytes written to stderr.
    pub stderr_bytes: u64,
    /// Bytes that are stored on the bus; the rest, up to the log limit, is in frames in the store.
    pub bus_bytes: u64,
    /// Of builds of earlier versions: file with the output that did not fit on the bus, stdout and stderr in order of arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overflow: Option<OutputFile>,
    /// Bytes beyond the log limit, or that the store did not take, which were discarded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Output stream of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputStream {
    /// Standard output (file descriptor 1).
    Stdout,
    /// Standard error (file descriptor 2).
    Stderr,
}

impl OutputStream {
    /// Name in messages and headers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// A text that names no output stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown output stream {0:?}: expected stdout or stderr")]
pub struct UnknownOutputStream(String);

impl FromStr for OutputStream {
    type Err = UnknownOutputStream;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = [Self::Stdout, Self::Stderr].into_iter().find(|stream| stream.as_str() == text);
        known.ok_or_else(|| UnknownOutputStream(text.to_owned()))
    }
}
