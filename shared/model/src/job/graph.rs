//! The checked form of a job.

use std::{collections::BTreeMap, sync::Arc};

use super::check;
use crate::{Digest, InvalidJob, Job, JobGlob, JobPath, TaskId, TaskLimits};

/// How often a task goes elsewhere after a failure of the farm, where nothing says otherwise.
pub const DEFAULT_RETRIES: u32 = 2;
/// The priority of a task that has none.
pub const DEFAULT_PRIORITY: i32 = 1;
/// What a judge's score counts, where nothing says otherwise.
pub const DEFAULT_WEIGHT: u32 = 1;

/// What jobs are checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobLimits {
    /// Tasks at most.
    pub tasks_max: usize,
    /// Bytes of the job as JSON at most. Whoever reads it checks this.
    pub bytes_max: usize,
    /// What a task's limits may be at most; absent: anything.
    pub task_max: TaskLimits,
}

impl JobLimits {
    /// Those of a job that was checked before.
    pub const NONE: Self = Self {
        tasks_max: usize::MAX,
        bytes_max: usize::MAX,
        task_max: TaskLimits {
            cpu_ms: None,
            wall_ms: None,
            memory_bytes: None,
            processes: None,
            files: None,
            disk_bytes: None,
            output_bytes: None,
        },
    };
}

/// A task's place in its job, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskIndex(u32);

impl TaskIndex {
    /// That of the task at `place`. A job has fewer than 2^32 tasks: that is checked first.
    pub(super) fn at(place: usize) -> Self {
        Self(u32::try_from(place).unwrap_or(u32::MAX))
    }

    /// As an index of the job's tasks.
    pub fn get(self) -> usize {
        self.0 as usize
    }
}

/// A job that can be run: every name is resolved, every path lies in its folder, nothing waits for itself.
#[derive(Debug, Clone)]
pub struct Graph {
    pub(super) tasks: Vec<Task>,
    pub(super) order: Vec<TaskIndex>,
}

/// One task of a [`Graph`]; the job's defaults are in it.
#[derive(Debug, Clone)]
pub struct Task {
    /// Its name.
    pub id: TaskId,
    /// What it does.
    pub step: Step,
    /// What must succeed before it starts, whether it is named as a dependency or makes what this one reads. Ascending,
    /// each once.
    pub dependencies: Vec<TaskIndex>,
    /// The tasks of which it is a dependency. Ascending, each once.
    pub dependants: Vec<TaskIndex>,
    /// The higher, the earlier.
    pub priority: i32,
    /// How often it goes elsewhere after a failure of the farm.
    pub retries: u32,
    /// Whether its failure stops the job.
    pub fatal: bool,
    /// What its score counts, if it is a judge.
    pub judge: Option<u32>,
}

/// What a task does.
#[derive(Debug, Clone)]
pub enum Step {
    /// Runs a command: an action.
    Command(Box<CommandStep>),
    /// Gets a file from a URL.
    Fetch {
        /// `http://` or `https://`.
        url: String,
        /// The file that it becomes.
        to: JobPath,
        /// What its content must hash to.
        digest: Option<Digest>,
    },
    /// Unpacks an archive into a folder, beside what is there.
    Extract {
        /// The archive.
        from: JobPath,
        /// The folder; may be the workspace itself.
        to: JobPath,
    },
    /// Copies a file or folder.
    Copy {
        /// What.
        from: JobPath,
        /// The copy's path.
        to: JobPath,
    },
    /// Makes a folder, with those above it.
    MakeFolder(JobPath),
    /// Takes a file or folder away.
    Remove(JobPath),
}

impl Step {
    /// Its name in a job.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Command(_) => "command",
            Self::Fetch { .. } => "fetch",
            Self::Extract { .. } => "extract",
            Self::Copy { .. } => "copy",
            Self::MakeFolder(_) => "make_folder",
            Self::Remove(_) => "remove",
        }
    }
}

/// A command of a task.
#[derive(Debug, Clone)]
pub struct CommandStep {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// What it reads, each once.
    pub inputs: Vec<Input>,
    /// What it makes, sorted, each once.
    pub outputs: Vec<JobPath>,
    /// Its environment variables. Shared between tasks that have none of their own.
    pub env: Arc<BTreeMap<String, String>>,
    /// Where it starts.
    pub folder: JobPath,
    /// What it may use.
    pub limits: TaskLimits,
    /// What its executor must offer. Shared likewise.
    pub platform: Arc<BTreeMap<String, String>>,
}

/// What a command reads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Input {
    /// A file or a folder with all in it; that it is missing is a failure.
    Path(JobPath),
    /// All files that it matches.
    Glob(JobGlob),
}

impl Graph {
    /// Checks a job; cost grows as its text does.
    pub fn new(job: &Job, limits: &JobLimits) -> Result<Self, InvalidJob> {
        check::graph(job, limits)
    }

    /// The tasks, in the order of the job.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// The tasks with their places.
    pub fn indexed(&self) -> impl ExactSizeIterator<Item = (TaskIndex, &Task)> {
        self.tasks.iter().enumerate().map(|(at, task)| (TaskIndex::at(at), task))
    }

    /// A task of this graph.
    pub fn task(&self, index: TaskIndex) -> Option<&Task> {
        self.tasks.get(index.get())
    }

    /// Where a task stands, as messages tell it: `job.tasks[3] (link)`.
    pub fn place(&self, index: TaskIndex) -> String {
        self.task(index)
            .map_or_else(String::new, |task| check::Place { at: index.get(), id: &task.id }.to_string())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Never: a job has a task at least.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The order in which they would start one after the other: dependencies first, then by priority, then as in the
    /// job. Of two tasks that put something at one path, what the later one puts counts.
    pub fn order(&self) -> &[TaskIndex] {
        &self.order
    }
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
