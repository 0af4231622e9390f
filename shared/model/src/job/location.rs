//! Where in a job a fault is.

use std::fmt::Display;

use crate::{InvalidJob, JobFault, TaskId};

/// Location of a task, for error messages.
#[derive(Clone, Copy)]
pub(super) struct TaskLocation<'a> {
    pub(super) at: usize,
    pub(super) id: &'a TaskId,
}

impl TaskLocation<'_> {
    pub(super) fn wrong(self, FieldFault(field, fault): FieldFault) -> InvalidJob {
        let dot = if field.is_empty() || field.starts_with('[') { "" } else { "." };
        InvalidJob { at: format!("{self}{dot}{field}"), fault }
    }
}

impl Display for TaskLocation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "job.tasks[{}] ({})", self.at, self.id)
    }
}

/// A fault, with the field of the task that has it.
pub(super) struct FieldFault(pub(super) String, pub(super) JobFault);

impl FieldFault {
    pub(super) fn new(field: &str, fault: impl Into<JobFault>) -> Self {
        Self(field.to_owned(), fault.into())
    }

    pub(super) fn at(field: &str, index: usize, fault: impl Into<JobFault>) -> Self {
        Self(format!("{field}[{index}]"), fault.into())
    }
}
