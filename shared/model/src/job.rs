//! Jobs: graphs of tasks that a build runs instead of a command.

mod check;
mod compare;
mod conditions;
mod dependency;
mod fault;
mod graph;
mod hwgroups;
mod interference;
mod links;
mod location;
mod measure;
mod measurement;
mod number;
mod path;
mod source;
mod text;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    BlobDigest, Digest, ImageFetch, InteractorReport, InteractorRequest, Millis, OutputFile, ServiceRequest,
    TaskId, TaskLimits,
};

pub use compare::{Compare, CompareBy, CompareRequest, CompareRule};
pub use conditions::{Conditions, DependencyRole};
pub use dependency::Dependency;
pub use fault::{InvalidJob, JobFault};
pub use graph::{
    CommandStep, DEFAULT_PRIORITY, DEFAULT_RETRIES, DEFAULT_WEIGHT, FetchSource, Graph, Input,
    InteractorStep, JobLimits, Step, Task, TaskIndex,
};
pub use hwgroups::CommandLimits;
pub use interference::{Disturbance, Interference};
pub use measure::{MeasurePlan, MeasureRequest};
pub use measurement::{MeasuredRun, Measurement, MeasurementState, RunFigures, TimeSummary};
pub use number::Fraction;
pub use path::{BadPath, JobGlob, JobPath, RESERVED_FOLDER};
pub use text::InvalidText;

/// A graph of tasks, as its author writes it (section 1.2.5 of the thesis). YAML or JSON.
///
/// Tasks use the files of one folder, the build's workspace: those of its context and the outputs of other tasks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Defaults for every task of the job.
    #[serde(default, skip_serializing_if = "TaskDefaults::is_empty")]
    pub defaults: TaskDefaults,
    /// Commands that serve those tasks which set `shared_services`, such as a database. They start once, before the first of
    /// these tasks, and stop after the last one. At most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceRequest>,
    /// Tasks of the job, at least one. Of the tasks that are ready, the one with the higher priority starts first,
    /// then the one listed first.
    pub tasks: Vec<TaskRequest>,
}

/// Defaults for every task of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskDefaults {
    /// Environment variables; those of a task are added and override them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Platform properties that executors must offer; those of a task are added and override them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub platform: BTreeMap<String, String>,
    /// Limits of each task; each limit set by a task replaces the one here.
    #[serde(skip_serializing_if = "TaskLimits::is_empty")]
    pub limits: TaskLimits,
    /// Maximum number of retries after a failure of the farm, 0 to 100. Default: 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
}

impl TaskDefaults {
    /// Whether no default is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One task, as its author writes it: exactly one of `command`, `fetch`, `extract`, `archive`, `copy`, `rename`,
/// `truncate`, `make_folder`, `remove` and `exists`, or `compare` alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// Id of the task, unique in the job.
    pub id: TaskId,
    /// Program and arguments of an action, which runs in a sandbox of an executor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Internal step: downloads a file from a URL, or takes it from the farm's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch: Option<FetchStep>,
    /// Internal step: unpacks a tar archive into a folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extract: Option<FromTo>,
    /// Internal step: packs a file or folder into a tar archive, compressed with gzip if its name ends with `.gz` or `.tgz`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<FromTo>,
    /// Internal step: copies a file or folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<FromTo>,
    /// Internal step: moves a file, a folder or a symlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename: Option<RenameStep>,
    /// Internal step: copies the first bytes of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncate: Option<TruncateStep>,
    /// Internal step: fails if a file or folder is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exists: Option<ExistsStep>,
    /// Internal step: creates the folder at this path and its missing parents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub make_folder: Option<String>,
    /// Internal step: removes the file or folder at this path. It is not an error if it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove: Option<String>,
    /// Built-in judge: compares a file with the expected one. Alone it is an internal step; with a command it judges an
    /// output of every run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compare: Option<CompareRequest>,
    /// Paths and globs of files and folders that the command reads. Naming exactly an output of another task makes
    /// this task depend on it; other files made by a task may be named only by tasks that depend on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<String>,
    /// Paths of files and folders that the command makes. The task fails if one of them is missing at its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Tasks that must have ended before it starts: `a` must succeed, of `{any: [a, b]}` at least one, and
    /// `{failed: a}` must fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<Dependency>,
    /// Commands that run beside its command and serve it, such as a database. At most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceRequest>,
    /// Whether its command uses the services of the job, which it shares with other tasks. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared_services: bool,
    /// Command that talks with its command over standard input and output, and decides with its exit code
    /// whether the task succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interactor: Option<InteractorRequest>,
    /// Priority: ready tasks with a higher value start first; any 32-bit integer. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Environment variables of the command, which sees no others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Folder in which the command starts, relative to the workspace. Default: the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Limits of the command; absent limits come from the job's defaults.
    #[serde(default, skip_serializing_if = "TaskLimits::is_empty")]
    pub limits: TaskLimits,
    /// Limits of the command on executors of a hardware group, by the value of their property `hwgroup`; each limit
    /// replaces that of `limits`. If `platform` asks for groups, only these may be named.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits_by_hwgroup: BTreeMap<String, TaskLimits>,
    /// Platform properties that the executor must offer, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub platform: BTreeMap<String, String>,
    /// Whether the action cache may answer the command and keep its result, and whether it may be merged with the same
    /// action of others. Default: true; with `measure` always false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<bool>,
    /// Repeated runs of the command, to measure its time. Default: one run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure: Option<MeasureRequest>,
    /// Path of an output with times that the program reports itself, in seconds: numbers separated by white space, or a
    /// JSON document, of which all numbers count. At most 1000 numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_times: Option<String>,
    /// Maximum number of retries after a failure of the farm, 0 to 100; a failure of the task itself
    /// is final. Default: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Whether its failure stops the whole job instead of only its dependants. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fatal: bool,
    /// Whether the task is a judge: the first word that it prints is a score from 0 to 1. Exit codes 0 and 1 are
    /// accepted, any other is a failure. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub judge: bool,
    /// Weight of a judge's score, or of that of `compare`, in the job's score, which is the weighted mean over all
    /// judges: 1 to 1,000,000. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// Download of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchStep {
    /// URL starting with `http://` or `https://`. Default: the file is in the farm's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Path of the downloaded file, relative to the workspace.
    pub to: String,
    /// Digest of the content; required without a URL. Default: not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Size of the file in the store, only without a URL. Default: looked up, which a store behind
    /// `grpc://` does not support.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
}

/// Copy of the first bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TruncateStep {
    /// Path of the file, relative to the workspace.
    pub from: String,
    /// Path of the copy, relative to the workspace.
    pub to: String,
    /// Maximum number of bytes of the copy; a shorter file is copied whole.
    pub bytes: u64,
}

/// Check that a file or folder exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExistsStep {
    /// Path of the file or folder, relative to the workspace. Symlinks are followed.
    pub path: String,
    /// What it must be. Default: either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<PathKind>,
}

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    File,
    Folder,
}

/// Source and target of an internal step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FromTo {
    /// Path of the source, relative to the workspace.
    pub from: String,
    /// Path of the target, relative to the workspace.
    pub to: String,
}

/// Move of a file, a folder or a symlink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameStep {
    /// Path of the source, relative to the workspace.
    pub from: String,
    /// Path of the target, relative to the workspace.
    pub to: String,
    /// Whether what is at the target is removed first. Default: false, the task fails if there is anything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
}

/// Job of a request: inline, or stored because it is too large for a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum JobSource {
    /// The job itself, in full.
    Inline(Job),
    /// A job in the farm's store, as JSON.
    Stored(StoredJob),
}

/// Reference to a job in the farm's store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoredJob {
    /// Digest of the job's JSON.
    pub digest: Digest,
    /// Size of the job's JSON in bytes. Default: looked up, which a store behind `grpc://` does not support.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
}

/// Final status of a task of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// The task ended without error.
    Succeeded,
    /// The task failed: another exit code than 0, a signal, a missing output, or an internal step that
    /// could not be done.
    Failed,
    /// The task was killed because it exceeded one of its limits.
    OverLimit,
    /// The farm could not run the task within its retries.
    FarmFailed,
    /// The task never started, because a dependency failed or the job was stopped.
    Skipped,
}

impl TaskStatus {
    /// Name in messages and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::OverLimit => "over_limit",
            Self::FarmFailed => "farm_failed",
            Self::Skipped => "skipped",
        }
    }
}

/// Report of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskReport {
    /// Id of the task.
    pub id: TaskId,
    /// Final status of the task.
    pub status: TaskStatus,
    /// Why the task did not succeed; absent if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Task whose failure kept this one from starting; absent unless it was skipped for that reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because_of: Option<TaskId>,
    /// Exit code of its command; absent if no command exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Whether the result came from the action cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// Id of the executor that ran it; absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// Score given by a judge, 0 to 1; absent for other tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// Wall-clock run time of its command in milliseconds; if `cached`, of the run that made the
    /// result. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    /// CPU time in milliseconds; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Peak memory in bytes; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The same figures more precisely, and the context switches of its processes. Of a measured task: the median times,
    /// the largest memory, and the sums of the switches. Absent if unknown, and in reports of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figures: Option<RunFigures>,
    /// Its repeated runs; absent if it is not measured, or no run came to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measurement: Option<Box<Measurement>>,
    /// Summary of the times that the program reported itself, over all runs; absent if it reported none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<TimeSummary>,
    /// What its services wrote, as blobs of the farm's store, by the name of the service, a dot, and `stdout` or `stderr`;
    /// of an interactor `interactor.stderr`. Empty outputs are left out, and of a cached result all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_logs: BTreeMap<String, BlobDigest>,
    /// How its interactor ended; absent if it has none, or did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interactor: Option<InteractorReport>,
    /// Start of its last try, in milliseconds since 1970: when its command was submitted for execution, its cached
    /// result was looked up, or its internal step began. Absent if it never started, and in reports of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<Millis>,
    /// End of its last try, in milliseconds since 1970; absent if `started_at_ms` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<Millis>,
    /// Digest of its action; absent if no action was made for it, and in reports of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<BlobDigest>,
}

impl TaskReport {
    /// Creates a report with only a status.
    pub fn new(id: TaskId, status: TaskStatus) -> Self {
        Self {
            id,
            status,
            reason: None,
            because_of: None,
            exit_code: None,
            cached: false,
            executor: None,
            score: None,
            wall_ms: None,
            cpu_ms: None,
            memory_bytes: None,
            figures: None,
            measurement: None,
            reported: None,
            service_logs: BTreeMap::new(),
            interactor: None,
            started_at_ms: None,
            ended_at_ms: None,
            action: None,
        }
    }

    /// The report without the single runs of a measurement, which may be large.
    #[must_use]
    pub fn without_runs(&self) -> Self {
        let mut report = self.clone();
        if let Some(measurement) = &mut report.measurement {
            measurement.runs.clear();
        }
        report
    }
}

/// Tasks of a job that run at a moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunningTasks {
    /// The moment, in milliseconds since 1970.
    pub at_ms: Millis,
    /// Number of tasks that run: their command on an executor, or their internal step on the worker. Tasks that wait
    /// for an executor are not among them.
    pub count: u64,
    /// Those that run longest, at most 8, the longest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub longest: Vec<RunningTask>,
    /// Length of the critical path in milliseconds: the longest chain of tasks that have not ended, by the mean run time of
    /// those that have. Absent while none has run. The job takes longer if executors are scarce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critical_path_ms: Option<u64>,
}

/// A task that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunningTask {
    /// Id of the task.
    pub id: TaskId,
    /// Time since which it runs, in milliseconds since 1970.
    pub since_ms: Millis,
    /// How much of its image its executor has fetched; absent if that is not going on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageFetch>,
}

/// Result of a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct JobResult {
    /// Number of tasks in the job.
    pub tasks: u64,
    /// Number of tasks that succeeded.
    pub succeeded: u64,
    /// Number of succeeded tasks whose result came from the action cache.
    pub cached: u64,
    /// Number of tasks that failed for any reason.
    pub failed: u64,
    /// Number of tasks that never started.
    pub skipped: u64,
    /// Weighted mean of the judges' scores, 0 to 1; a judge without a score counts as 0. Absent if the
    /// job has no judges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// Reports of the first tasks that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<TaskReport>,
    /// Ids of the first tasks that never started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped_tasks: Vec<TaskId>,
    /// File with the reports of all tasks, one [`TaskReport`] per line, in the order of the job; absent if not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<OutputFile>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_read_as_it_is_or_by_its_digest() {
        let inline = r#"{"tasks": [{"id": "a", "command": ["true"], "limits": {"cpu_ms": 5}}]}"#;
        let Ok(JobSource::Inline(job)) = serde_json::from_str(inline) else { panic!("{inline}") };
        assert_eq!(job.tasks.first().map(|task| task.limits.cpu_ms), Some(Some(5)));
        let digest = Digest::of(b"x");
        let stored = serde_json::from_str(&format!(r#"{{"digest": "{digest}"}}"#)).unwrap();
        assert_eq!(JobSource::Stored(StoredJob { digest, size_bytes: None }), stored);
    }

    #[test]
    fn limits_of_a_task_come_before_the_defaults() {
        let own = TaskLimits { cpu_ms: Some(1), ..TaskLimits::default() };
        let all = own.or(TaskLimits { cpu_ms: Some(2), files: Some(3), ..TaskLimits::default() });
        assert_eq!((all.cpu_ms, all.files), (Some(1), Some(3)));
    }
}
