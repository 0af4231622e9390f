//! Runs a measured task: its command several times, as often as `policy::measurement` decides, and each time as an
//! execution of its own.

use model::{CommandStep, MeasurePlan, MeasurementState, Task, TaskIndex, TaskReport, TaskStatus};
use policy::measurement::NextRun;

use crate::{
    action::ActionRun, runner::Runner, series::Series, task_end::TaskEnd, task_error::TaskError,
    visible::VisibleEffects,
};

impl Runner {
    /// Runs a measured command as often as `plan` says, each time like `run`.
    pub(crate) async fn measured(
        &self,
        index: TaskIndex,
        task: &Task,
        (command, plan): (&CommandStep, &MeasurePlan),
        visible: &VisibleEffects,
        run: ActionRun,
    ) -> Result<TaskEnd, TaskError> {
        let mut series = self.measured_tasks.resume(index);
        let ended = self.repeat(index, task, (command, plan), visible, (&mut series, run)).await;
        if !matches!(&ended, Ok(end) if end.report.status != TaskStatus::FarmFailed) {
            self.measured_tasks.interrupt(index, series);
        }
        ended
    }

    async fn repeat(
        &self,
        index: TaskIndex,
        task: &Task,
        (command, plan): (&CommandStep, &MeasurePlan),
        visible: &VisibleEffects,
        (series, run): (&mut Series, ActionRun),
    ) -> Result<TaskEnd, TaskError> {
        loop {
            let next = series.next(plan);
            if let NextRun::Done(state) = next {
                return Ok(series.end(task, (command, plan), state));
            }
            let turn = self.measured_tasks.turn(plan).await;
            let run = run.numbered(series.number());
            let end = self.run_action(index, task, command, visible, run).await?;
            drop(turn);
            let state = match end.report.status {
                TaskStatus::Succeeded if is_rejected(command, &end.report) => MeasurementState::Rejected,
                TaskStatus::Succeeded if next == NextRun::Warmup => {
                    series.warm();
                    continue;
                }
                TaskStatus::Succeeded => {
                    series.add(end);
                    if let Some(report) = series.preliminary(command, plan) {
                        self.measured_tasks.add_preliminary(index, report);
                    }
                    continue;
                }
                TaskStatus::Failed if end.report.score.is_some() => MeasurementState::Rejected,
                TaskStatus::Failed => MeasurementState::RunFailed,
                TaskStatus::OverLimit => MeasurementState::FarOverLimit,
                TaskStatus::FarmFailed | TaskStatus::Skipped => return Ok(end),
            };
            return Ok(series.bad_end(end, plan, state));
        }
    }
}

/// Whether the judge of a successful run rejects it: `compare` found a difference and names no lower score that passes, or
/// the command is a judge that exited with 1.
fn is_rejected(command: &CommandStep, report: &TaskReport) -> bool {
    match &command.compare {
        Some(compare) => compare.pass <= 0.0 && report.score.is_some_and(|score| score < 1.0),
        None => report.exit_code == Some(1),
    }
}
