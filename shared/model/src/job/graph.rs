//! The checked form of a job.

use std::{collections::BTreeMap, sync::Arc};

use invariant::Present as _;

use super::location::TaskLocation;
use crate::{
    CommandLimits, Compare, Conditions, DependencyRole, Digest, Interactor, JobGlob, JobPath, MeasurePlan,
    PathKind, ServiceRequest, TaskId, TaskLimits,
};

/// Default number of times that a task is retried after a failure of the farm.
pub const DEFAULT_RETRIES: u32 = 2;
/// Default priority of a task.
pub const DEFAULT_PRIORITY: i32 = 1;
/// Default weight of a judge's score.
pub const DEFAULT_WEIGHT: u32 = 1;

/// Limits that jobs are checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobLimits {
    /// Maximum number of tasks.
    pub tasks_max: usize,
    /// Maximum size of the job as JSON in bytes, checked by the caller that reads it.
    pub bytes_max: usize,
    /// Maximum values of a task's limits; absent values are unlimited.
    pub task_max: TaskLimits,
}

impl JobLimits {
    /// No limits, for a job that was checked before.
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

/// Index of a task in its job, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskIndex(u32);

impl TaskIndex {
    /// The index of the task at `place`. A job has fewer than 2^32 tasks, which is checked first.
    pub(super) fn at(place: usize) -> Self {
        Self(u32::try_from(place).present_or(u32::MAX, "the index of a task of a checked job"))
    }

    /// The position in the job's list of tasks.
    pub fn get(self) -> usize {
        self.0 as usize
    }
}

/// A runnable job: every name is resolved, every path lies in its folder, and the dependencies have no cycle.
#[derive(Debug, Clone)]
pub struct Graph {
    pub(super) tasks: Vec<Task>,
    pub(super) order: Vec<TaskIndex>,
    pub(super) services: Vec<ServiceRequest>,
}

/// One task of a [`Graph`], with the job's defaults applied.
#[derive(Debug, Clone)]
pub struct Task {
    /// Id of the task.
    pub id: TaskId,
    /// The step that the task performs.
    pub step: Step,
    /// Tasks that must have ended before it starts: named dependencies, and makers of its inputs. Ascending, each once.
    pub dependencies: Vec<TaskIndex>,
    /// What the dependencies must have done; absent: all must have succeeded.
    pub conditions: Option<Box<Conditions>>,
    /// Tasks that depend on it. Ascending, each once.
    pub dependants: Vec<TaskIndex>,
    /// Priority: ready tasks with a higher value start first.
    pub priority: i32,
    /// Maximum number of retries after a failure of the farm.
    pub retries: u32,
    /// Whether its failure stops the job.
    pub fatal: bool,
    /// Weight of its score; absent if the task is not a judge.
    pub judge: Option<u32>,
}

impl Task {
    /// What one of its dependencies must do so that it can start.
    pub fn role(&self, dependency: TaskIndex) -> DependencyRole {
        self.conditions.as_ref().map_or(DependencyRole::MustSucceed, |conditions| conditions.role(dependency))
    }

    /// Groups of its dependencies, of each of which at least one must succeed.
    pub fn any(&self) -> &[Vec<TaskIndex>] {
        self.conditions.as_ref().map_or(&[], |conditions| conditions.any())
    }
}

/// The step that a task performs.
#[derive(Debug, Clone)]
pub enum Step {
    /// Runs a command as an action.
    Command(Box<CommandStep>),
    /// Downloads a file from a source.
    Fetch {
        /// Where the file is.
        from: FetchSource,
        /// Path of the downloaded file.
        to: JobPath,
    },
    /// Unpacks an archive into a folder, keeping the files that are there.
    Extract {
        /// Path of the archive.
        from: JobPath,
        /// Path of the folder; may be the workspace itself.
        to: JobPath,
    },
    /// Copies a file or folder.
    Copy {
        /// Path of the source.
        from: JobPath,
        /// Path of the copy.
        to: JobPath,
    },
    /// Packs a file or folder into an archive.
    Archive {
        /// Path of the file or folder.
        from: JobPath,
        /// Path of the archive.
        to: JobPath,
    },
    /// Moves a file or folder.
    Rename {
        /// Path before the move.
        from: JobPath,
        /// Path after the move; neither path is in the other.
        to: JobPath,
        /// Whether it takes the place of what is at `to`; otherwise that is a failure.
        replace: bool,
    },
    /// Copies the first bytes of a file.
    Truncate {
        /// Path of the file.
        from: JobPath,
        /// Path of the copy.
        to: JobPath,
        /// Maximum number of bytes of the copy.
        bytes: u64,
    },
    /// Fails if a file or folder is missing.
    Exists {
        /// Path of the file or folder.
        path: JobPath,
        /// What it must be; absent: either.
        kind: Option<PathKind>,
    },
    /// Creates a folder and its missing parents.
    MakeFolder(JobPath),
    /// Removes a file or folder.
    Remove(JobPath),
    /// Compares a file with the expected one.
    Compare(Box<Compare>),
}

/// Where a file is downloaded from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchSource {
    /// A server on the network.
    Url {
        /// URL starting with `http://` or `https://`.
        url: String,
        /// Expected digest of the content; absent: not checked.
        digest: Option<Digest>,
    },
    /// The store of the farm.
    Store {
        /// Digest of the file.
        digest: Digest,
        /// Size of the file in bytes; absent: looked up.
        size_bytes: Option<u64>,
    },
}

impl Step {
    /// The command of the step; `None` if it changes files without one.
    pub fn as_command(&self) -> Option<&CommandStep> {
        match self {
            Self::Command(command) => Some(command),
            Self::Fetch { .. }
            | Self::Extract { .. }
            | Self::Archive { .. }
            | Self::Copy { .. }
            | Self::Rename { .. }
            | Self::Truncate { .. }
            | Self::Exists { .. }
            | Self::MakeFolder(_)
            | Self::Remove(_)
            | Self::Compare(_) => None,
        }
    }

    /// Name of the field in the JSON of a job.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Command(_) => "command",
            Self::Fetch { .. } => "fetch",
            Self::Extract { .. } => "extract",
            Self::Archive { .. } => "archive",
            Self::Copy { .. } => "copy",
            Self::Rename { .. } => "rename",
            Self::Truncate { .. } => "truncate",
            Self::Exists { .. } => "exists",
            Self::MakeFolder(_) => "make_folder",
            Self::Remove(_) => "remove",
            Self::Compare(_) => "compare",
        }
    }
}

/// Command of a task.
#[derive(Debug, Clone)]
pub struct CommandStep {
    /// Program and arguments to run.
    pub argv: Vec<String>,
    /// Inputs of the command, each once.
    pub inputs: Vec<Input>,
    /// Output paths, sorted, each once.
    pub outputs: Vec<JobPath>,
    /// Environment variables. Shared between tasks that add none to the defaults.
    pub env: Arc<BTreeMap<String, String>>,
    /// Folder in which the command starts.
    pub folder: JobPath,
    /// Limits of the command, for each hardware group that it may run on.
    pub limits: CommandLimits,
    /// Platform properties that the executor must offer. Shared between tasks that add none to the defaults.
    pub platform: Arc<BTreeMap<String, String>>,
    /// Whether the action cache may answer it and keep its result; false if it is measured or uses shared services.
    pub cache: bool,
    /// Its repeated runs; absent: it runs once.
    pub measure: Option<MeasurePlan>,
    /// Output with times that the program reports itself.
    pub reported_times: Option<JobPath>,
    /// Judge of one of its outputs, in every run.
    pub compare: Option<Compare>,
    /// Commands that serve it while it runs.
    pub services: Vec<ServiceRequest>,
    /// Whether it uses the services of the job.
    pub shared_services: bool,
    /// Command that it talks with over standard input and output.
    pub interactor: Option<InteractorStep>,
}

/// Interactor of a task's command.
#[derive(Debug, Clone)]
pub struct InteractorStep {
    /// Inputs of the interactor, each once. The command does not see them.
    pub inputs: Vec<Input>,
    /// The interactor, without the folder of its inputs.
    pub interactor: Interactor,
}

impl CommandStep {
    /// The limits that a single run is killed at.
    pub fn limits_of_a_run(&self) -> CommandLimits {
        let of_a_run = |limits| self.measure.map_or(limits, |plan| plan.limits_of_a_run(limits));
        self.limits.map(of_a_run)
    }
}

/// An input of a command.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Input {
    /// A file, or a folder with its content; the command fails if it is missing.
    Path(JobPath),
    /// All files that the glob matches.
    Glob(JobGlob),
}

impl Graph {
    /// The tasks, in the order of the job.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// The tasks with their indexes.
    pub fn indexed(&self) -> impl ExactSizeIterator<Item = (TaskIndex, &Task)> {
        self.tasks.iter().enumerate().map(|(at, task)| (TaskIndex::at(at), task))
    }

    /// The services that some of its tasks share.
    pub fn services(&self) -> &[ServiceRequest] {
        &self.services
    }

    /// The tasks that use the services of the job, in its order.
    pub fn users_of_services(&self) -> impl Iterator<Item = (TaskIndex, &CommandStep)> {
        let commands = self.indexed().map(|(at, task)| (at, task.step.as_command()));
        commands.filter_map(|(at, command)| Some((at, command.filter(|command| command.shared_services)?)))
    }

    /// The task at `index`.
    pub fn task(&self, index: TaskIndex) -> Option<&Task> {
        self.tasks.get(index.get())
    }

    /// Location of a task as used in messages: `job.tasks[3] (link)`.
    pub fn place(&self, index: TaskIndex) -> String {
        self.task(index)
            .map_or_else(String::new, |task| TaskLocation { at: index.get(), id: &task.id }.to_string())
    }

    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Always false: a job has at least one task.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The order in which the tasks would run one at a time: dependencies first, then by priority, then as in the job.
    /// If two tasks write the same path, the result of the later one counts.
    pub fn order(&self) -> &[TaskIndex] {
        &self.order
    }
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
