//! The critical path of the rest of a job: the longest chain of tasks that have not ended, by their expected run times.

use model::{Graph, Step, Task, TaskIndex, TaskReport};

use super::GraphRun;

/// Run times of the tasks of a job that have ended, by which those of the others are expected. Results from the cache
/// do not count: they say nothing of how long a task without one takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunTimes {
    commands: Sum,
    steps: Sum,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    tasks: u64,
    ms: u64,
}

impl Sum {
    fn mean(self) -> Option<u64> {
        self.ms.checked_div(self.tasks)
    }
}

impl RunTimes {
    /// Adds the run time of a task that has ended.
    pub fn add(&mut self, task: &Task, report: &TaskReport) {
        let Some(ms) = report.wall_ms.filter(|_| !report.cached) else { return };
        let sum = if is_command(task) { &mut self.commands } else { &mut self.steps };
        let runs = report.measurement.as_ref().map_or(1, |measured| measured.wall.n);
        sum.tasks += 1;
        sum.ms = sum.ms.saturating_add(ms.saturating_mul(runs));
    }

    /// The expected run time of a task in milliseconds; `None` if none of its kind has run.
    fn expected_ms(self, task: &Task) -> Option<u64> {
        if is_command(task) { self.commands.mean() } else { self.steps.mean() }
    }
}

fn is_command(task: &Task) -> bool {
    matches!(task.step, Step::Command(_))
}

impl GraphRun {
    /// The length of the critical path in milliseconds, if `ran_ms` tells how long each running task has run, 0 for others.
    /// `None` if commands are left and none has run. Internal steps take little: of them, unknown run times count as 0.
    pub fn critical_path_ms(&self, times: RunTimes, ran_ms: impl Fn(TaskIndex) -> u64) -> Option<u64> {
        let left = |(_, task): &(TaskIndex, &Task)| is_command(task);
        if times.commands.mean().is_none() && self.left().any(|one| left(&one)) {
            return None;
        }
        let rest = |at: TaskIndex, task: &Task| {
            times.expected_ms(task).unwrap_or_default().saturating_sub(ran_ms(at))
        };
        let has_ended = |at: TaskIndex| self.report(at).is_some();
        Some(longest_chain(&self.graph, has_ended, rest))
    }

    /// The tasks that have not ended.
    fn left(&self) -> impl Iterator<Item = (TaskIndex, &Task)> {
        self.graph.indexed().filter(|(at, _)| self.report(*at).is_none())
    }
}

/// The largest sum of `length` over a chain of tasks that have not ended, each of which depends on the one before.
fn longest_chain(
    graph: &Graph,
    has_ended: impl Fn(TaskIndex) -> bool,
    length: impl Fn(TaskIndex, &Task) -> u64,
) -> u64 {
    // The longest chain that begins with each task.
    let mut from = vec![0_u64; graph.len()];
    let mut longest = 0;
    for at in graph.order().iter().rev().copied() {
        let Some(task) = graph.task(at).filter(|_| !has_ended(at)) else { continue };
        let behind = task.dependants.iter().filter_map(|dependant| from.get(dependant.get()));
        let chain = length(at, task).saturating_add(behind.copied().max().unwrap_or_default());
        longest = longest.max(chain);
        if let Some(place) = from.get_mut(at.get()) {
            *place = chain;
        }
    }
    longest
}

#[cfg(test)]
mod tests;
