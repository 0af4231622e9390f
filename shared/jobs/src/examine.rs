//! What a command left is read after its run: times that it reports itself, and the output that is judged.

use model::{CommandStep, TaskIndex, TaskStatus};
use policy::measurement::time_summary;

use crate::{
    answer::fail, compare, job_files::Effect, reported, runner::Runner, small_file, task_end::TaskEnd,
    task_error::TaskError, visible::VisibleEffects,
};

impl Runner {
    /// Reads the reported times and judges the output of a successful run.
    pub(crate) async fn examine(
        &self,
        index: TaskIndex,
        command: &CommandStep,
        visible: &VisibleEffects,
        mut end: TaskEnd,
    ) -> Result<TaskEnd, TaskError> {
        match self.read_results(index, command, visible, &mut end).await {
            Ok(()) => {}
            Err(TaskError::Own(why)) => fail(&mut end.report, why),
            Err(error) => return Err(error),
        }
        if end.report.status != TaskStatus::Succeeded {
            end.effect = None;
        }
        Ok(end)
    }

    async fn read_results(
        &self,
        index: TaskIndex,
        command: &CommandStep,
        visible: &VisibleEffects,
        end: &mut TaskEnd,
    ) -> Result<(), TaskError> {
        let farm = (&self.remote, &self.patience);
        let Some(Effect::Adds(added)) = &end.effect else { return Ok(()) };
        if let Some(path) = &command.reported_times {
            let node = small_file::find(added, path)?;
            let content = small_file::read(&node, path.as_str(), reported::BYTES_MAX, farm).await?;
            end.reported_us = reported::times_us(path, &content).map_err(TaskError::Own)?;
            end.report.reported = time_summary(end.reported_us.iter().copied());
        }
        if let Some(wanted) = &command.compare {
            let found = small_file::find(added, &wanted.found)?;
            let expected = self.job_files.expected(index, &wanted.expected, visible)?;
            // One comparison at a time, because each holds both files in memory.
            let _turn = self.comparing.lock().await;
            let judged = compare::compare(wanted, (&found, &expected), farm).await?;
            compare::conclude(wanted, judged, &mut end.report, &mut end.output);
        }
        Ok(())
    }
}
