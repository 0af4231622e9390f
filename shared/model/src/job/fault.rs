//! What is wrong with a job, and where.

use crate::{BadPath, TaskId};

/// A job that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {fault}")]
pub struct InvalidJob {
    /// The path of what is wrong: `job.tasks[3] (link).dependencies[1]`.
    pub at: String,
    /// What is wrong there.
    pub fault: JobFault,
}

/// What can be wrong with a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobFault {
    /// Nothing to do.
    #[error("there is no task")]
    Empty,
    /// More tasks than the farm takes.
    #[error("there are {tasks} tasks, at most {most} are taken")]
    TooManyTasks {
        /// How many.
        tasks: usize,
        /// At most.
        most: usize,
    },
    /// Two tasks of one name.
    #[error("job.tasks[{first}] has the id {id:?} already")]
    DuplicateId {
        /// The name.
        id: String,
        /// Where it stands first.
        first: usize,
    },
    /// A dependency on what is not there.
    #[error("there is no task {0:?}")]
    UnknownDependency(String),
    /// More than anybody can look through.
    #[error(
        "with this one the tasks have more than {most} dependencies together, named and implied by inputs"
    )]
    TooManyDependencies {
        /// At most.
        most: usize,
    },
    /// Tasks that wait for each other.
    #[error("the tasks wait for each other: {0}")]
    Cycle(String),
    /// Two tasks make the same.
    #[error("{path:?} is made by job.tasks[{first}] ({id}) already")]
    SameOutput {
        /// What.
        path: String,
        /// The other one's place.
        first: usize,
        /// Its name.
        id: TaskId,
    },
    /// Nothing to do, or more than one thing.
    #[error("{found}: exactly one of command, fetch, extract, copy, make_folder and remove is expected")]
    Steps {
        /// What there is.
        found: String,
    },
    /// Said of a task without a command.
    #[error("only a task with a command has it")]
    NeedsCommand,
    /// Said of a task that judges nothing.
    #[error("only a judge has it: judge: true is missing")]
    NeedsJudge,
    /// No program.
    #[error("the program is empty")]
    NoProgram,
    /// A NUL byte can be passed to no process.
    #[error("it holds a NUL byte")]
    Nul,
    /// Not the name of an environment variable.
    #[error("{0:?} is no name of a variable: a name without '=' is expected")]
    BadEnvName(String),
    /// A property without a name.
    #[error("a property has no name")]
    BadProperty,
    /// A limit in the wrong place.
    #[error("{0:?} is a limit: say it in limits")]
    LimitAsProperty(String),
    /// Not a path or glob in the workspace.
    #[error(transparent)]
    Path(#[from] BadPath),
    /// Where nothing can be fetched from.
    #[error("{0:?} is no http:// or https:// URL")]
    BadUrl(String),
    /// A number out of its range.
    #[error("it is {value}: 1 to {most} is expected")]
    OutOfRange {
        /// What it says.
        value: u64,
        /// At most.
        most: u64,
    },
}
