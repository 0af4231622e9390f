//! The run of a job's graph: which tasks may start, what follows from the end of a task, and the reports on all tasks.

mod conditions;
mod critical_path;
mod judge;
mod reach;
mod score;
mod services;

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use invariant::impossible;
use model::{Graph, JobResult, TaskIndex, TaskReport, TaskStatus};

use conditions::{SkipReason, Verdict};
pub use critical_path::RunTimes;
pub use judge::{BadVerdict, judged};
pub use reach::{Unreachable, asked_environments, reachable};
pub use services::{ServicesEnd, ServicesRun, ServicesStart, ServicesUse, services_platform};

/// The wait before a task is first tried elsewhere; each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// Maximum wait before a further try.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Maximum number of failures named in a result.
const FAILURES_MAX: usize = 20;
/// Maximum number of skipped tasks named in a result.
const SKIPPED_MAX: usize = 100;

/// A run of a graph. Its owner asks it which tasks to start, and reports their ends to it.
#[derive(Debug, Clone)]
pub struct GraphRun {
    graph: Arc<Graph>,
    states: Vec<TaskState>,
    reports: Vec<Option<TaskReport>>,
    /// Ready tasks by priority, then by their order in the job. Tasks that have ended since are skipped.
    ready: BinaryHeap<(i32, Reverse<TaskIndex>)>,
    running: usize,
    counts: Counts,
    /// Set when no further task may start.
    stopped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskState {
    /// Number of dependencies that have not ended yet.
    Waiting(usize),
    Ready,
    /// Number of times that the farm failed it.
    Running(u32),
    Ended,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    succeeded: u64,
    cached: u64,
    failed: u64,
    skipped: u64,
}

/// What follows from the end of a task's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterTask {
    /// The farm failed the task: it counts as running, and is to be run elsewhere after a wait.
    Again {
        wait: Duration,
        /// Number of tries, including the next one.
        tries: u32,
    },
    /// The task has ended.
    Ended(Consequences),
    /// The task was not running, because it was cancelled before. Nothing follows.
    Nothing,
}

/// Effects of the end of a task on other tasks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Consequences {
    /// Tasks that will never start, in the order of the job. Each has its report.
    pub skipped: Vec<TaskIndex>,
    /// Running tasks to cancel; they count as skipped and have their reports.
    pub cancelled: Vec<TaskIndex>,
}

impl GraphRun {
    /// Creates a run of `graph` in which no task has started.
    pub fn new(graph: Arc<Graph>) -> Self {
        let states: Vec<TaskState> = graph
            .tasks()
            .iter()
            .map(|task| match task.dependencies.len() {
                0 => TaskState::Ready,
                missing => TaskState::Waiting(missing),
            })
            .collect();
        let free = graph.indexed().filter(|(_, task)| task.dependencies.is_empty());
        let ready = free.map(|(at, task)| (task.priority, Reverse(at))).collect();
        let reports = vec![None; graph.len()];
        Self { graph, states, reports, ready, running: 0, counts: Counts::default(), stopped: false }
    }

    /// The graph that is run.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// Returns the task to start next and marks it as running: of those whose dependencies have all ended as they must, the one
    /// with the highest priority, then the first in the job.
    pub fn start_next(&mut self) -> Option<TaskIndex> {
        while let Some((_, Reverse(at))) = self.ready.pop() {
            if self.state(at) == Some(TaskState::Ready) {
                self.set(at, TaskState::Running(0));
                self.running += 1;
                return Some(at);
            }
        }
        None
    }

    /// Records how a run of `task` ended. The report's status must not be [`TaskStatus::Skipped`]; a task may allow
    /// several failures of the farm.
    pub fn ended(&mut self, task: TaskIndex, report: TaskReport) -> AfterTask {
        let Some(TaskState::Running(failures)) = self.state(task) else { return AfterTask::Nothing };
        let graph = self.graph.clone();
        let Some(asked) = graph.task(task) else {
            impossible!("task {} runs and is not in the graph", task.get());
            return AfterTask::Nothing;
        };
        match report.status {
            TaskStatus::FarmFailed if failures < asked.retries => {
                self.set(task, TaskState::Running(failures + 1));
                AfterTask::Again { wait: wait(failures), tries: failures.saturating_add(2) }
            }
            TaskStatus::Succeeded => {
                self.counts.succeeded += 1;
                self.counts.cached += u64::from(report.cached);
                self.end(task, report);
                AfterTask::Ended(self.inform_dependants(task))
            }
            TaskStatus::Failed | TaskStatus::OverLimit | TaskStatus::FarmFailed | TaskStatus::Skipped => {
                self.counts.failed += 1;
                self.end(task, report);
                AfterTask::Ended(if asked.fatal {
                    self.stop(&format!("task {} is fatal and failed", asked.id), Some(task))
                } else {
                    self.inform_dependants(task)
                })
            }
        }
    }

    /// Ends all tasks that have not ended, as skipped for `reason`: the build was cancelled, or is out of time.
    pub fn give_up(&mut self, reason: &str) -> Consequences {
        self.stop(reason, None)
    }

    /// Number of running tasks.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Number of ended tasks, with any result.
    pub fn tasks_ended(&self) -> u64 {
        self.counts.succeeded + self.counts.failed + self.counts.skipped
    }

    /// Whether every task has ended.
    pub fn is_over(&self) -> bool {
        self.tasks_ended() == self.graph.len() as u64
    }

    /// Whether a fatal failure, or [`Self::give_up`], ended the run early.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The report on a task that has ended.
    pub fn report(&self, task: TaskIndex) -> Option<&TaskReport> {
        self.reports.get(task.get())?.as_ref()
    }

    /// The report on a task that has ended, to add what its owner knows about its run.
    pub fn report_mut(&mut self, task: TaskIndex) -> Option<&mut TaskReport> {
        self.reports.get_mut(task.get())?.as_mut()
    }

    /// The reports of all ended tasks, in the order of the job.
    pub fn reports(&self) -> impl Iterator<Item = &TaskReport> {
        self.reports.iter().flatten()
    }

    /// The result of the job so far, without the file of all reports.
    pub fn result(&self) -> JobResult {
        let is_skipped = |report: &TaskReport| report.status == TaskStatus::Skipped;
        let failures =
            self.reports().filter(|report| !is_skipped(report) && report.status != TaskStatus::Succeeded);
        let skipped = self.reports().filter(|report| is_skipped(report));
        JobResult {
            tasks: self.graph.len() as u64,
            succeeded: self.counts.succeeded,
            cached: self.counts.cached,
            failed: self.counts.failed,
            skipped: self.counts.skipped,
            score: self.score(),
            failures: failures.take(FAILURES_MAX).map(TaskReport::without_runs).collect(),
            skipped_tasks: skipped.take(SKIPPED_MAX).map(|report| report.id.clone()).collect(),
            report: None,
        }
    }

    /// Starts or skips the tasks that depend on the ended task `first`, and skips what depends on skipped ones.
    fn inform_dependants(&mut self, first: TaskIndex) -> Consequences {
        let graph = self.graph.clone();
        let mut skipped = Vec::new();
        let mut next = vec![first];
        while let Some(ended) = next.pop() {
            for at in graph.task(ended).into_iter().flat_map(|task| &task.dependants).copied() {
                let (Some(TaskState::Waiting(missing)), Some(task)) = (self.state(at), graph.task(at)) else {
                    continue;
                };
                match self.verdict(task, ended, missing) {
                    Verdict::Waits => self.set(at, TaskState::Waiting(missing.saturating_sub(1))),
                    Verdict::Starts => {
                        self.set(at, TaskState::Ready);
                        self.ready.push((task.priority, Reverse(at)));
                    }
                    Verdict::Never(why) => {
                        self.skip(at, why);
                        skipped.push(at);
                        next.push(at);
                    }
                }
            }
        }
        skipped.sort_unstable();
        Consequences { skipped, cancelled: Vec::new() }
    }

    /// Ends all tasks that have not ended.
    fn stop(&mut self, reason: &str, because_of: Option<TaskIndex>) -> Consequences {
        self.stopped = true;
        self.ready.clear();
        let mut consequences = Consequences::default();
        let graph = self.graph.clone();
        for (at, _) in graph.indexed() {
            match self.state(at) {
                Some(TaskState::Waiting(_) | TaskState::Ready) => consequences.skipped.push(at),
                Some(TaskState::Running(_)) => consequences.cancelled.push(at),
                Some(TaskState::Ended) | None => continue,
            }
            let because_of = because_of.and_then(|at| graph.task(at)).map(|task| task.id.clone());
            self.skip(at, SkipReason { reason: Some(reason.to_owned()), because_of });
        }
        consequences
    }

    fn skip(&mut self, task: TaskIndex, why: SkipReason) {
        let Some(id) = self.graph.task(task).map(|task| task.id.clone()) else {
            impossible!("task {} is skipped and is not in the graph", task.get());
            return;
        };
        let SkipReason { reason, because_of } = why;
        self.counts.skipped += 1;
        self.end(task, TaskReport { reason, because_of, ..TaskReport::new(id, TaskStatus::Skipped) });
    }

    fn end(&mut self, task: TaskIndex, report: TaskReport) {
        if matches!(self.state(task), Some(TaskState::Running(_))) {
            self.running -= 1;
        }
        self.set(task, TaskState::Ended);
        if let Some(place) = self.reports.get_mut(task.get()) {
            *place = Some(report);
        } else {
            impossible!("task {} ended and is not in the graph", task.get());
        }
    }

    fn state(&self, task: TaskIndex) -> Option<TaskState> {
        self.states.get(task.get()).copied()
    }

    fn set(&mut self, task: TaskIndex, state: TaskState) {
        if let Some(place) = self.states.get_mut(task.get()) {
            *place = state;
        } else {
            impossible!("task {} changes its state and is not in the graph", task.get());
        }
    }
}

/// The wait before the next try of a task; `failures` is the number of earlier failures, 0 at the first one.
fn wait(failures: u32) -> Duration {
    FIRST_WAIT.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests;
