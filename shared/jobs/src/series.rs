//! The runs of measured tasks so far, and the reports that they make together.

use std::collections::HashMap;

use invariant::impossible;
use model::{
    CommandStep, MeasurePlan, MeasuredRun, MeasurementState, RunFigures, Task, TaskIndex, TaskReport,
    TaskStatus,
};
use parking_lot::Mutex;
use policy::measurement::{NextRun, disturbances, measurement, next_run, reported_times, slow_median};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::task_end::TaskEnd;

/// Maximum number of preliminary reports in one event.
const PRELIMINARY_MAX: usize = 100;

/// The measured tasks of a job.
#[derive(Debug)]
pub(crate) struct MeasuredTasks {
    /// Measured runs take place one at a time, so that they do not disturb each other.
    turn: Semaphore,
    /// Runs of tasks that the farm failed: a further try continues after them.
    interrupted: Mutex<HashMap<TaskIndex, Series>>,
    /// Reports of tasks after their first run, if more follow, which are not published yet.
    preliminary: Mutex<Vec<(TaskIndex, TaskReport)>>,
}

impl Default for MeasuredTasks {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), interrupted: Mutex::default(), preliminary: Mutex::default() }
    }
}

impl MeasuredTasks {
    /// Waits until no other measured run takes place; not if `plan` allows others beside it.
    pub(crate) async fn turn(&self, plan: &MeasurePlan) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed; without a permit the run would only be disturbed.
        if plan.parallel { None } else { self.turn.acquire().await.ok() }
    }

    /// The runs that an earlier try of the task made before the farm failed it.
    pub(crate) fn resume(&self, task: TaskIndex) -> Series {
        self.interrupted.lock().remove(&task).unwrap_or_default()
    }

    /// Keeps the runs of a task that the farm failed.
    pub(crate) fn interrupt(&self, task: TaskIndex, series: Series) {
        self.interrupted.lock().insert(task, series);
    }

    /// Adds a preliminary report to publish.
    pub(crate) fn add_preliminary(&self, task: TaskIndex, report: TaskReport) {
        self.preliminary.lock().push((task, report));
    }

    /// Whether there are preliminary reports to publish.
    pub(crate) fn has_preliminary(&self) -> bool {
        !self.preliminary.lock().is_empty()
    }

    /// Removes the oldest preliminary reports, as many as one event may have. Of those that are left, reports of tasks that
    /// have ended are dropped: they would follow the final ones.
    pub(crate) fn take_preliminary(&self, has_ended: impl Fn(TaskIndex) -> bool) -> Vec<TaskReport> {
        let mut all = self.preliminary.lock();
        let count = all.len().min(PRELIMINARY_MAX);
        let drained = all.drain(..count).map(|(_, report)| report.without_runs()).collect();
        all.retain(|(task, _)| !has_ended(*task));
        drained
    }
}

/// The runs of a measured task so far, all of them good.
#[derive(Debug, Default)]
pub(crate) struct Series {
    warmed: u32,
    runs: Vec<MeasuredRun>,
    /// The end of the first measured run; its outputs are those of the task.
    first: Option<Box<TaskEnd>>,
    /// The lowest score of a run, if the task has a judge.
    score: Option<f64>,
}

impl Series {
    /// What follows after the runs so far.
    pub(crate) fn next(&self, plan: &MeasurePlan) -> NextRun {
        next_run(plan, self.warmed, &self.runs)
    }

    /// The number of the next run, from 1; those that do not count are numbered too.
    pub(crate) fn number(&self) -> u32 {
        let runs = u32::try_from(self.runs.len()).unwrap_or(u32::MAX);
        self.warmed.saturating_add(runs).saturating_add(1)
    }

    /// Counts a good run that is not measured.
    pub(crate) fn warm(&mut self) {
        self.warmed = self.warmed.saturating_add(1);
    }

    /// Adds a good run that is measured.
    pub(crate) fn add(&mut self, mut end: TaskEnd) {
        let report = &end.report;
        let figures = report.figures.unwrap_or_default();
        self.runs.push(MeasuredRun {
            figures,
            executor: report.executor.clone(),
            reported_us: std::mem::take(&mut end.reported_us),
            disturbed_by: disturbances(&figures),
        });
        self.score = self.score.into_iter().chain(report.score).reduce(f64::min);
        if self.first.is_none() {
            self.first = Some(Box::new(end));
        }
    }

    /// The preliminary report, if exactly one run was measured and more follow.
    pub(crate) fn preliminary(&self, command: &CommandStep, plan: &MeasurePlan) -> Option<TaskReport> {
        let more = !matches!(self.next(plan), NextRun::Done(_));
        let first = self.first.as_ref().filter(|_| more && self.runs.len() == 1)?;
        Some(self.good_report(&first.report, (command, plan), MeasurementState::Preliminary))
    }

    /// The end of the task after its last run, all of which were good.
    pub(crate) fn end(
        &mut self,
        task: &Task,
        (command, plan): (&CommandStep, &MeasurePlan),
        state: MeasurementState,
    ) -> TaskEnd {
        let Some(first) = self.first.take() else {
            impossible!("the measurement of task {} is complete without a run", task.id);
            return TaskEnd::dropped(task);
        };
        let report = self.good_report(&first.report, (command, plan), state);
        let effect = first.effect.filter(|_| report.status == TaskStatus::Succeeded);
        TaskEnd { report, effect, output: first.output, reported_us: Vec::new() }
    }

    /// The end of the task with the run that ended as `end`, which was not good.
    pub(crate) fn bad_end(&self, end: TaskEnd, plan: &MeasurePlan, state: MeasurementState) -> TaskEnd {
        let mut report = self.with_figures(&end.report, plan, state);
        let number = self.number();
        if let Some(reason) = report.reason.take() {
            report.reason = Some(if number > 1 { format!("run {number}: {reason}") } else { reason });
        }
        TaskEnd { report, ..end }
    }

    /// The report of a task whose runs were all good: the median of their times keeps the limits or does not.
    fn good_report(
        &self,
        first: &TaskReport,
        (command, plan): (&CommandStep, &MeasurePlan),
        state: MeasurementState,
    ) -> TaskReport {
        let mut report = TaskReport { score: self.score, ..self.with_figures(first, plan, state) };
        let slow =
            report.measurement.as_ref().and_then(|measured| slow_median(&command.limits.common, measured));
        if let Some(reason) = slow {
            report.status = TaskStatus::OverLimit;
            report.reason = Some(reason);
        }
        report
    }

    /// The report of one run with the figures of all that were measured and count.
    fn with_figures(&self, of_run: &TaskReport, plan: &MeasurePlan, state: MeasurementState) -> TaskReport {
        let measured = measurement(plan, &self.runs, self.warmed, state);
        let Some(measured) = measured else { return of_run.clone() };
        let figures = RunFigures {
            cpu_us: measured.cpu.median_us,
            wall_us: measured.wall.median_us,
            memory_bytes: measured.memory_bytes,
            voluntary_switches: measured.voluntary_switches,
            involuntary_switches: measured.involuntary_switches,
            interference: None,
        };
        TaskReport {
            cpu_ms: Some(figures.cpu_us / 1000),
            wall_ms: Some(figures.wall_us / 1000),
            memory_bytes: Some(figures.memory_bytes),
            figures: Some(figures),
            reported: reported_times(plan, &self.runs),
            measurement: Some(Box::new(measured)),
            ..of_run.clone()
        }
    }
}

#[cfg(test)]
mod tests;
