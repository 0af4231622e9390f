//! A job: the graph of tasks that a build may be, in the place of a command.

mod check;
mod fault;
mod graph;
mod links;
mod path;
mod source;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Digest, OutputFile, TaskId};

pub use fault::{InvalidJob, JobFault};
pub use graph::{
    CommandStep, DEFAULT_PRIORITY, DEFAULT_RETRIES, DEFAULT_WEIGHT, Graph, Input, JobLimits, Step, Task,
    TaskIndex,
};
pub use path::{BadPath, JobGlob, JobPath};

/// A graph of tasks, as its author writes it (section 1.2.5 of the thesis). YAML or JSON.
///
/// Tasks name files of one folder, the build's workspace: what its context put there, and what other tasks made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// What holds for every task that does not say otherwise.
    #[serde(default, skip_serializing_if = "TaskDefaults::is_empty")]
    pub defaults: TaskDefaults,
    /// The tasks. Of those that are ready, the one with the higher priority starts first, then the one that stands first
    /// here.
    pub tasks: Vec<TaskRequest>,
}

/// What holds for every task of a job that does not say otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskDefaults {
    /// Environment variables; those of a task come on top.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What the executors must offer; what a task asks for comes on top.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub platform: BTreeMap<String, String>,
    /// What a task may use; each limit that a task names replaces the one here.
    #[serde(skip_serializing_if = "TaskLimits::is_empty")]
    pub limits: TaskLimits,
    /// How often a task goes elsewhere after a failure of the farm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
}

impl TaskDefaults {
    /// Whether they say nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One task, as its author writes it: exactly one of `command`, `fetch`, `extract`, `copy`, `make_folder` and `remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// Its name in the job.
    pub id: TaskId,
    /// The program and its arguments: an action, run by an executor in a sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Internal step: a file from a URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch: Option<FetchStep>,
    /// Internal step: what is in a tar archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extract: Option<FromTo>,
    /// Internal step: a copy of a file or folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<FromTo>,
    /// Internal step: a new folder, with those above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub make_folder: Option<String>,
    /// Internal step: without this file or folder. That there is none is no failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove: Option<String>,
    /// Files and folders that the command reads: paths and globs. What a task makes may be named by those that depend on it
    /// only; naming exactly an output of another task is to depend on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<String>,
    /// Files and folders that the command makes: paths. One that is missing at its end is a failure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Tasks that must succeed before it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<TaskId>,
    /// The higher, the earlier. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Environment variables of the command, which has no others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Where the command starts, relative to the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// What it may use.
    #[serde(default, skip_serializing_if = "TaskLimits::is_empty")]
    pub limits: TaskLimits,
    /// What its executor must offer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub platform: BTreeMap<String, String>,
    /// How often it goes elsewhere after a failure of the farm; a failure of its own is final. Default: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Whether its failure stops the whole job, and not only what depends on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fatal: bool,
    /// Whether it judges others: the first word that it prints is a score from 0 to 1; exit code 0 or 1, anything else is a
    /// failure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub judge: bool,
    /// What its score counts in the job's, which is the mean over all judges. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// Where a file comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchStep {
    /// `http://` or `https://`.
    pub url: String,
    /// The file.
    pub to: String,
    /// What its content must hash to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
}

/// From where to where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FromTo {
    /// What is there.
    pub from: String,
    /// What is to be there.
    pub to: String,
}

/// What a task may use; what is absent is as the farm's settings say. Whoever uses more is killed, and has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskLimits {
    /// Milliseconds of processor time, user and system, of all its processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Milliseconds from its start to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    /// Bytes of memory of all its processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processes and threads at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Files and folders that it may add.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
    /// Bytes that its folder may grow by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Bytes that it may write to standard output, and as many to standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
}

impl TaskLimits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These, and where they say nothing those of `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            cpu_ms: self.cpu_ms.or(others.cpu_ms),
            wall_ms: self.wall_ms.or(others.wall_ms),
            memory_bytes: self.memory_bytes.or(others.memory_bytes),
            processes: self.processes.or(others.processes),
            files: self.files.or(others.files),
            disk_bytes: self.disk_bytes.or(others.disk_bytes),
            output_bytes: self.output_bytes.or(others.output_bytes),
        }
    }
}

/// The job of a request: itself, or where it was put because it is too large for a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum JobSource {
    /// The job.
    Inline(Job),
    /// A job in the farm's store, as JSON.
    Stored(StoredJob),
}

/// A job in the farm's store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoredJob {
    /// Of its JSON.
    pub digest: Digest,
}

/// How a task of a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// As it should.
    Succeeded,
    /// By its own fault: another exit code than 0, a signal, an output that is missing, a step that could not be done.
    Failed,
    /// It used more than one of its limits allows.
    OverLimit,
    /// The farm could not run it, as often as it was tried.
    FarmFailed,
    /// It never started, since what it depends on failed, or was stopped with the job.
    Skipped,
}

impl TaskStatus {
    /// The public name.
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

/// What became of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskReport {
    /// Which.
    pub id: TaskId,
    /// How it ended.
    pub status: TaskStatus,
    /// Why, when it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The task whose failure kept it from starting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because_of: Option<TaskId>,
    /// Its command's exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Whether its result was there already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// Who ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// The score that it gave, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// Milliseconds from its command's start to its end; when `cached`, of the run whose result this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    /// Milliseconds of processor time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Bytes of memory at its peak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

impl TaskReport {
    /// A report that says nothing more.
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
        }
    }
}

/// What became of a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct JobResult {
    /// Its tasks.
    pub tasks: u64,
    /// Those that succeeded.
    pub succeeded: u64,
    /// Of these, those whose result was there already.
    pub cached: u64,
    /// Those that failed, for whatever reason.
    pub failed: u64,
    /// Those that never started.
    pub skipped: u64,
    /// The weighted mean of what the judges gave, where there are any; one that gave nothing counts as 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// The first of those that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<TaskReport>,
    /// The first of those that never started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped_tasks: Vec<TaskId>,
    /// Reports of all tasks, one [`TaskReport`] a line, in the order of the job.
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
        assert_eq!(JobSource::Stored(StoredJob { digest }), stored);
    }

    #[test]
    fn limits_of_a_task_come_before_the_defaults() {
        let own = TaskLimits { cpu_ms: Some(1), ..TaskLimits::default() };
        let all = own.or(TaskLimits { cpu_ms: Some(2), files: Some(3), ..TaskLimits::default() });
        assert_eq!((all.cpu_ms, all.files), (Some(1), Some(3)));
    }
}
