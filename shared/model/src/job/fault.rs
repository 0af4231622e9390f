//! Errors in a job and their locations.

use crate::{BadPath, InvalidInteractor, InvalidService, TaskId};

/// A job that was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {fault}")]
pub struct InvalidJob {
    /// Location of the error, for example `job.tasks[3] (link).dependencies[1]`.
    pub at: String,
    /// The error at that location.
    pub fault: JobFault,
}

/// Maximum length in characters of the name of a hardware group.
pub(super) const GROUP_MAX: usize = 200;

/// An error in a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobFault {
    #[error("the job has no tasks")]
    Empty,
    #[error("the job has {tasks} tasks, the limit is {most}")]
    TooManyTasks { tasks: usize, most: usize },
    /// Two tasks have the same id.
    #[error("id {id:?} is already used by job.tasks[{first}]")]
    DuplicateId { id: String, first: usize },
    #[error("unknown task {0:?}")]
    UnknownDependency(String),
    /// A group of tasks without tasks.
    #[error("`any` is empty: expected at least one task")]
    EmptyAny,
    /// The task would never start.
    #[error(
        "task {0:?} must fail, but must also succeed: it is named without `failed`, or makes an input of this task"
    )]
    BothWays(String),
    /// The task would never start.
    #[error("all tasks of an `any` must fail, such as {0:?}: this task could never start")]
    AnyFails(String),
    /// The job ends with the failure.
    #[error("task {0:?} is fatal: no task starts after its failure")]
    FatalFails(String),
    #[error("with this task, the job has more than {most} dependencies, named and implied by inputs")]
    TooManyDependencies { most: usize },
    /// The task ids of the cycle, joined by `->`.
    #[error("dependency cycle: {0}")]
    Cycle(String),
    #[error("{path:?} is already an output of job.tasks[{first}] ({id})")]
    SameOutput { path: String, first: usize, id: TaskId },
    /// The task has no step, or more than one.
    #[error(
        "{found}: expected exactly one of command, fetch, extract, archive, copy, rename, truncate, make_folder, remove, \
         exists and compare"
    )]
    Steps { found: String },
    /// The field is set in a task without a command.
    #[error("allowed only in a task with a command")]
    NeedsCommand,
    /// The field is set in a task that is not a judge.
    #[error("allowed only in a judge: set judge to true")]
    NeedsJudge,
    /// The task has both kinds of judges.
    #[error("a task with `compare` already has a judge: remove `judge`")]
    TwoJudges,
    /// The cache cannot answer runs that are to be measured.
    #[error("a measured task always runs: remove `cache` or `measure`")]
    MeasuredCache,
    /// Only a wanted width of the interval asks for more runs.
    #[error("allowed only together with `until`")]
    NeedsUntil,
    #[error("allowed only with `by: float`")]
    NeedsFloat,
    /// A file to read after the run that the run does not leave.
    #[error("{0:?} is not an output of the task: add it to `outputs`")]
    NotAnOutput(String),
    #[error("it is {value}: expected {least} to {most}")]
    OutsideRange { value: String, least: String, most: String },
    /// A time limit of a single run, above the limit of the farm.
    #[error("with `limit_factor`, {name} of a run is {value}: expected at most {most}")]
    RunLimit { name: String, value: u64, most: u64 },
    /// A file or folder can be moved neither into itself nor onto a folder around it.
    #[error("{from:?} cannot become {to:?}: one of them is in the other, or both are the same")]
    MoveIntoItself { from: String, to: String },
    /// A value of the property `hwgroup` that no executor can have.
    #[error(
        "{0:?} is not a hardware group: expected 1 to {GROUP_MAX} characters without '|' and without white space at the ends"
    )]
    BadGroup(String),
    /// Limits for hardware on which the task never runs.
    #[error("the task never runs on {0:?}: add it to `hwgroup` in `platform`, or remove these limits")]
    OtherGroup(String),
    /// Runs on different hardware are not a sample of one time.
    #[error("a measured task must ask for exactly one hwgroup in `platform`")]
    MeasuredGroups,
    #[error("the program is empty")]
    NoProgram,
    /// No process can be passed a NUL byte.
    #[error("it contains a NUL byte")]
    Nul,
    #[error("invalid variable name {0:?}: must not be empty or contain '='")]
    BadEnvName(String),
    #[error("a property has no name")]
    BadProperty,
    /// A limit given as a platform property.
    #[error("{0:?} is a limit: set it under `limits`")]
    LimitAsProperty(String),
    #[error(transparent)]
    Service(#[from] InvalidService),
    #[error(transparent)]
    Interactor(#[from] InvalidInteractor),
    /// A command reaches its services over a network, and its interactor must not.
    #[error("a task with an interactor cannot have services: remove one of them")]
    InteractorWithServices,
    /// A command is in one network only.
    #[error(
        "a task cannot use the services of the job and have its own: remove `services` or `shared_services`"
    )]
    SharedAndOwnServices,
    /// The task would find nothing.
    #[error("the job has no services: list them in the field `services` of the job")]
    NoSharedServices,
    /// Nothing would start the services.
    #[error("no task uses the services of the job: set `shared_services: true` in those that do")]
    UnusedServices,
    /// The result depends on the state of the services.
    #[error("a task with shared services always runs: remove `cache` or `shared_services`")]
    SharedServicesCache,
    /// What the command prints is read by the interactor.
    #[error(
        "a task with an interactor prints no score, because the interactor reads its output: remove `judge`"
    )]
    JudgeWithInteractor,
    #[error(transparent)]
    Path(#[from] BadPath),
    /// A download from nowhere.
    #[error("it has neither `url` nor `digest`: set `url`, or the `digest` of a file in the farm's store")]
    NoSource,
    /// A server says how large its file is.
    #[error("allowed only without `url`")]
    SizeOfUrl,
    #[error("invalid URL {0:?}: expected http:// or https://")]
    BadUrl(String),
    #[error("it is {value}: expected 1 to {most}")]
    OutOfRange { value: u64, most: u64 },
}
