//! Files that tasks made and that the farm's store has lost since: the tasks that made them run again.

use std::collections::HashSet;

use invariant::impossible;
use model::{BlobDigest, Step, TaskIndex};

use crate::{
    action::ActionRun, job_files::Effect, runner::Runner, task_end::TaskEnd, task_error::TaskError,
    tree::each_file,
};

/// Maximum number of reruns for one task with missing inputs.
const RUNS_MAX: usize = 1000;

impl Runner {
    /// Restores these blobs in the store. A task that made one may itself miss inputs, which are restored first.
    pub(crate) async fn remake(&self, lost: &[BlobDigest]) -> Result<(), TaskError> {
        let mut wanted: HashSet<BlobDigest> = lost.iter().copied().collect();
        let mut stack = self.job_files.producers(&wanted);
        let mut runs = 0;
        while let Some(index) = stack.last().copied() {
            let made = self.make_again(index).await;
            self.running.end(index);
            runs += 1;
            match made {
                Ok(made) => {
                    wanted.retain(|digest| !made.contains(digest));
                    stack.pop();
                }
                Err(TaskError::Lost(more)) if runs < RUNS_MAX => {
                    let more: HashSet<BlobDigest> = more.into_iter().collect();
                    let producers = self.job_files.producers(&more);
                    if producers.is_empty() || producers.iter().any(|producer| stack.contains(producer)) {
                        return Err(gone(&more));
                    }
                    wanted.extend(more);
                    stack.extend(producers);
                }
                Err(TaskError::Lost(more)) => return Err(gone(&more.into_iter().collect())),
                Err(error) => return Err(error),
            }
        }
        if wanted.is_empty() { Ok(()) } else { Err(gone(&wanted)) }
    }

    /// Runs the command of a task that succeeded before; returns the files that it made this time.
    async fn make_again(&self, index: TaskIndex) -> Result<HashSet<BlobDigest>, TaskError> {
        let Some(task) = self.job_files.graph().task(index) else {
            impossible!("the job has no task {} to run again", index.get());
            return Ok(HashSet::new());
        };
        let Step::Command(command) = &task.step else {
            impossible!("task {} is run again, but has no command", task.id);
            return Ok(HashSet::new());
        };
        if command.shared_services {
            return Err(TaskError::Farm(format!(
                "outputs of task {} were lost, and it is not run again, because it used shared services",
                task.id
            )));
        }
        let TaskEnd { report, effect, .. } =
            self.run_action(index, task, command, &self.job_files.visible_to(index), ActionRun::ONCE).await?;
        let Some(Effect::Adds(added)) = effect else {
            let why = report.reason.as_deref().unwrap_or("unknown reason");
            return Err(TaskError::Farm(format!(
                "outputs of task {} were lost, and running it again failed: {why}",
                task.id
            )));
        };
        let mut made = HashSet::new();
        for (_, node) in &added {
            each_file(node, &mut HashSet::new(), &mut |content| made.extend(content.digest().ok()));
        }
        Ok(made)
    }
}

fn gone(lost: &HashSet<BlobDigest>) -> TaskError {
    let example = lost.iter().min().map_or_else(String::new, ToString::to_string);
    TaskError::Farm(format!(
        "the farm's store lost {} files of earlier tasks, such as {example}, and rerunning does not reproduce them",
        lost.len()
    ))
}
