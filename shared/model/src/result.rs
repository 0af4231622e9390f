//! How a build ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Digest, JobResult, Occupancy};

/// Characters of a message for people. What a client sent may stand in it, and that can be long.
const BRIEF: usize = 1000;

/// `text`, or its beginning.
pub fn brief(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(BRIEF) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The result of a build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BuildResult {
    /// How it ended.
    pub outcome: Outcome,
    /// Why, when it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The command's exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// When the command's process was started, in microseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_started_at_us: Option<u64>,
    /// Seconds from the command's start to its end.
    #[serde(default)]
    pub wall_seconds: f64,
    /// CPU seconds, user and system, of all its processes.
    #[serde(default)]
    pub cpu_seconds: f64,
    /// Resident bytes of its largest process at its peak.
    #[serde(default)]
    pub peak_memory_bytes: u64,
    /// The ESU that it occupied on the average of its run, for each executor type that it used.
    #[serde(default, skip_serializing_if = "Occupancy::is_empty")]
    pub usage: Occupancy,
    /// Seconds that it took to fill its workspace, where there was something to fill it with. Not part of `wall_seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preparation_seconds: Option<f64>,
    /// The files that its output globs matched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputFile>,
    /// The globs of its outputs that no kept file matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs_missing: Vec<String>,
    /// What its output globs matched and cannot be kept: the first 100 by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs_not_kept: Vec<OutputNotKept>,
    /// How many of these there are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub outputs_not_kept_count: u64,
    /// What became of its tasks, where it is a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Box<JobResult>>,
    /// What became of its console output.
    #[serde(default)]
    pub log: LogSummary,
}

impl BuildResult {
    /// A result without a run behind it.
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
            preparation_seconds: None,
            outputs: Vec::new(),
            outputs_missing: Vec::new(),
            outputs_not_kept: Vec::new(),
            outputs_not_kept_count: 0,
            job: None,
            log: LogSummary::default(),
        }
    }
}

/// How a build ended, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The command exited with 0.
    Succeeded,
    /// The command failed, or could not be started.
    Failed,
    /// It ran longer than its timeout.
    TimedOut,
    /// Someone cancelled it.
    Cancelled,
    /// It waited too long.
    Expired,
    /// Its workers were lost until its attempts were used up.
    Lost,
    /// It was refused.
    Rejected,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Succeeded,
        Self::Failed,
        Self::TimedOut,
        Self::Cancelled,
        Self::Expired,
        Self::Lost,
        Self::Rejected,
    ];

    /// The public name.
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

    /// What a command line that waited for the build exits with.
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
    /// For programs.
    pub code: ReasonCode,
    /// For people: what happened, to what.
    pub message: String,
}

impl Reason {
    /// With a message that is not too long to be part of a record.
    #[must_use]
    pub fn brief(self) -> Self {
        Self { code: self.code, message: brief(self.message) }
    }
}

/// Why a build did not succeed, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReasonCode {
    /// The command exited with another code than 0, or by a signal.
    CommandFailed,
    /// The command could not be started.
    CommandNotStarted,
    /// Tasks of its job failed.
    TasksFailed,
    /// The workspace could not be prepared: no such folder, revision, archive, or another digest.
    ContextUnavailable,
    /// The worker's disk is full.
    DiskFull,
    /// An output could not be kept.
    OutputNotKept,
    /// An output was not made, and the request says that all must be.
    OutputMissing,
    /// It ran longer than its timeout.
    RunningTooLong,
    /// It waited longer than its queue timeout.
    QueuedTooLong,
    /// Someone cancelled it.
    Cancelled,
    /// The worker's lease ran out: the worker died, hung, or was cut off.
    LeaseExpired,
    /// The worker was told to stop.
    WorkerDrained,
    /// The worker could not run it for a fault of its own.
    WorkerFault,
    /// The worker could not reach a gateway of the farm for the tasks of a job.
    GatewayUnreachable,
    /// The request was refused.
    InvalidRequest,
}

/// One kept file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputFile {
    /// Relative to the workspace.
    pub path: String,
    /// Of its content.
    pub digest: Digest,
    /// Its length.
    pub size_bytes: u64,
    /// Whether it may be executed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
}

/// What an output glob matched and is not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputNotKept {
    /// Relative to the workspace; bytes that are no UTF-8 are replaced.
    pub path: String,
    /// What about it cannot be kept.
    pub reason: String,
}

/// What became of a build's console output.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct LogSummary {
    /// Bytes written to stdout.
    pub stdout_bytes: u64,
    /// Bytes written to stderr.
    pub stderr_bytes: u64,
    /// Bytes that are on the bus; the rest, up to the log limit, is in `overflow`.
    pub bus_bytes: u64,
    /// What did not fit on the bus: stdout and stderr in the order of arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overflow: Option<OutputFile>,
    /// Bytes past the log limit, which are kept nowhere.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Which output of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputStream {
    /// File descriptor 1.
    Stdout,
    /// File descriptor 2.
    Stderr,
}

impl OutputStream {
    /// The header value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}
