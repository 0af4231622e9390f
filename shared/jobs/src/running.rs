//! The tries of tasks that run now.

use std::collections::HashMap;

use bus::FarmClock;
use model::{BlobDigest, ImageFetch, Millis, RunningTask, RunningTasks, TaskIndex, TaskReport};
use parking_lot::Mutex;
use policy::graph::{GraphRun, RunTimes};

/// Maximum number of running tasks that an event names.
const NAMED_MAX: usize = 8;

/// The tries of tasks that run now, by task.
pub(crate) struct RunningTries {
    clock: FarmClock,
    tries: Mutex<Tries>,
}

#[derive(Debug, Default)]
struct Tries {
    of: HashMap<TaskIndex, Try>,
    /// Number of times that an action or step began or ended to execute, or that more of its image was fetched.
    changes: u64,
}

/// What is known of one try of a task.
#[derive(Debug)]
struct Try {
    started_at: Millis,
    action: Option<BlobDigest>,
    /// Name of the operation that executes the action.
    operation: Option<String>,
    /// Since when an executor, or for an internal step the worker, executes it; `None` while it waits for an executor.
    executing_since: Option<Millis>,
    /// How much of its image was fetched, while it is fetched.
    image: Option<ImageFetch>,
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
        let executing_since = action.is_none().then_some(started_at);
        let mut tries = self.tries.lock();
        let before =
            tries.of.insert(task, Try { started_at, action, operation: None, executing_since, image: None });
        let was_executing = before.is_some_and(|before| before.executing_since.is_some());
        tries.changes += u64::from(was_executing != executing_since.is_some());
    }

    /// Records the operation that executes the action of a task, whether an executor does so now,
    /// and how much of its image it has fetched.
    pub(crate) fn learn_operation(
        &self,
        task: TaskIndex,
        name: &str,
        (executes, image): (bool, Option<ImageFetch>),
    ) {
        let now = self.clock.now();
        let mut tries = self.tries.lock();
        let Some(known) = tries.of.get_mut(&task) else { return };
        if known.operation.as_deref() != Some(name) {
            known.operation = Some(name.to_owned());
        }
        if known.executing_since.is_some() != executes {
            known.executing_since = executes.then_some(now);
            tries.changes += 1;
        }
        let Some(known) = tries.of.get_mut(&task) else { return };
        if known.image != image {
            known.image = image;
            tries.changes += 1;
        }
    }

    /// Takes the names of the operations of these tasks, or of all.
    pub(crate) fn take_operations(&self, tasks: Option<&[TaskIndex]>) -> Vec<String> {
        let mut tries = self.tries.lock();
        match tasks {
            Some(tasks) => tasks.iter().filter_map(|task| tries.of.get_mut(task)?.operation.take()).collect(),
            None => tries.of.values_mut().filter_map(|one| one.operation.take()).collect(),
        }
    }

    /// Ends the try of a task; `None` if it had not started.
    pub(crate) fn end(&self, task: TaskIndex) -> Option<TryFacts> {
        let mut tries = self.tries.lock();
        let Try { started_at, action, operation: _, executing_since, image: _ } = tries.of.remove(&task)?;
        tries.changes += u64::from(executing_since.is_some());
        // The clock may be corrected backwards during the try.
        Some(TryFacts { started_at, ended_at: self.clock.now().max(started_at), action })
    }

    /// Increases when other tasks execute than before, or when more of an image was fetched.
    pub(crate) fn changes(&self) -> u64 {
        self.tries.lock().changes
    }

    /// The tasks of `run` that execute now; `times` are the run times of those that have ended.
    pub(crate) fn executing(&self, run: &GraphRun, times: RunTimes) -> RunningTasks {
        let now = self.clock.now();
        let (since, images): (HashMap<TaskIndex, Millis>, HashMap<TaskIndex, ImageFetch>) = {
            let tries = self.tries.lock();
            // A task may run again for its lost outputs after it has ended.
            let executing = || tries.of.iter().filter(|(task, _)| run.report(**task).is_none());
            (
                executing().filter_map(|(task, one)| Some((*task, one.executing_since?))).collect(),
                executing().filter_map(|(task, one)| Some((*task, one.image?))).collect(),
            )
        };
        let ran = |task: TaskIndex| since.get(&task).map_or(0, |since| bus::millis(now.since(*since)));
        let critical_path_ms = run.critical_path_ms(times, ran);
        let mut longest: Vec<(Millis, TaskIndex)> =
            since.iter().map(|(task, since)| (*since, *task)).collect();
        longest.sort_unstable();
        let named = longest.into_iter().take(NAMED_MAX).filter_map(|(since_ms, task)| {
            let image = images.get(&task).copied();
            Some(RunningTask { id: run.graph().task(task)?.id.clone(), since_ms, image })
        });
        RunningTasks { at_ms: now, count: since.len() as u64, longest: named.collect(), critical_path_ms }
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
