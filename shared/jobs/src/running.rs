//! The tries of tasks that run now.

use std::collections::HashMap;

use bus::FarmClock;
use model::{BlobDigest, Millis, TaskIndex, TaskReport};
use parking_lot::Mutex;

/// The tries of tasks that run now, by task.
pub(crate) struct RunningTries {
    clock: FarmClock,
    tries: Mutex<HashMap<TaskIndex, Try>>,
}

/// What is known of one try of a task.
#[derive(Debug)]
struct Try {
    started_at: Millis,
    action: Option<BlobDigest>,
    /// Name of the operation that executes the action.
    operation: Option<String>,
}

/// What a report says about the last try of its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TryFacts {
    started_at: Millis,
    ended_at: Millis,
    action: Option<BlobDigest>,
}

impl RunningTries {
    pub(crate) fn new(clock: FarmClock) -> Self {
        Self { clock, tries: Mutex::default() }
    }

    /// Records that a task starts now; an internal step has no action.
    pub(crate) fn start(&self, task: TaskIndex, action: Option<BlobDigest>) {
        let started_at = self.clock.now();
        self.tries.lock().insert(task, Try { started_at, action, operation: None });
    }

    /// Records the operation that executes the action of a task.
    pub(crate) fn has_operation(&self, task: TaskIndex, name: &str) {
        let mut tries = self.tries.lock();
        let Some(known) = tries.get_mut(&task).map(|one| &mut one.operation) else { return };
        if known.as_deref() != Some(name) {
            *known = Some(name.to_owned());
        }
    }

    /// Takes the names of the operations of these tasks, or of all.
    pub(crate) fn take_operations(&self, tasks: Option<&[TaskIndex]>) -> Vec<String> {
        let mut tries = self.tries.lock();
        match tasks {
            Some(tasks) => tasks.iter().filter_map(|task| tries.get_mut(task)?.operation.take()).collect(),
            None => tries.values_mut().filter_map(|one| one.operation.take()).collect(),
        }
    }

    /// Ends the try of a task; `None` if it had not started.
    pub(crate) fn end(&self, task: TaskIndex) -> Option<TryFacts> {
        let Try { started_at, action, operation: _ } = self.tries.lock().remove(&task)?;
        // The clock may be corrected backwards during the try.
        Some(TryFacts { started_at, ended_at: self.clock.now().max(started_at), action })
    }
}

impl TryFacts {
    /// Adds these facts to the report on the task.
    pub(crate) fn add_to(self, report: &mut TaskReport) {
        report.started_at_ms = Some(self.started_at);
        report.ended_at_ms = Some(self.ended_at);
        report.action = self.action;
    }
}
