//! The end of one try of a task.

use model::{Task, TaskReport, TaskStatus};

use crate::{job_files::Effect, output::TaskOutput, task_error::TaskError};

/// The end of one try of a task.
#[derive(Debug)]
pub(crate) struct TaskEnd {
    pub(crate) report: TaskReport,
    /// Its effect on the files, if it succeeded.
    pub(crate) effect: Option<Effect>,
    pub(crate) output: TaskOutput,
    /// Times that its program reported itself, in microseconds.
    pub(crate) reported_us: Vec<u64>,
}

impl TaskEnd {
    /// An end without output and effect.
    pub(crate) fn of(report: TaskReport) -> Self {
        Self { report, effect: None, output: TaskOutput::default(), reported_us: Vec::new() }
    }

    /// The end of a task that an internal fault aborted.
    pub(crate) fn dropped(task: &Task) -> Self {
        Self::failed(task, TaskError::Farm("internal error: the worker dropped the task".to_owned()))
    }

    /// The end of a task that has no result because of `error`.
    pub(crate) fn failed(task: &Task, error: TaskError) -> Self {
        let status =
            if matches!(error, TaskError::Own(_)) { TaskStatus::Failed } else { TaskStatus::FarmFailed };
        let reason = Some(model::brief(error.into_reason()));
        Self::of(TaskReport { reason, ..TaskReport::new(task.id.clone(), status) })
    }
}
