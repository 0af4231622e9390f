//! What the end of a task means for the tasks that depend on it.

use model::{DependencyRole, Task, TaskId, TaskIndex, TaskStatus};

use super::GraphRun;

/// Maximum number of tasks that a reason names.
const NAMED_MAX: usize = 5;

/// What follows for a waiting task from the end of one of its dependencies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Other dependencies have not ended.
    Waits,
    /// All dependencies ended as they must.
    Starts,
    /// A condition can no longer be met.
    Never(SkipReason),
}

/// Why a task is skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SkipReason {
    pub(super) reason: Option<String>,
    /// The task whose failure is the reason.
    pub(super) because_of: Option<TaskId>,
}

impl SkipReason {
    fn without_failure(reason: String) -> Self {
        Self { reason: Some(reason), because_of: None }
    }
}

/// How a task ended, as far as its dependants are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Succeeded,
    Failed,
    Skipped,
}

impl GraphRun {
    /// How a task ended; `None` if it has not.
    pub(super) fn ending(&self, task: TaskIndex) -> Option<Ending> {
        Some(match self.report(task)?.status {
            TaskStatus::Succeeded => Ending::Succeeded,
            TaskStatus::Failed | TaskStatus::OverLimit | TaskStatus::FarmFailed => Ending::Failed,
            TaskStatus::Skipped => Ending::Skipped,
        })
    }

    /// What follows for `task`, which waits for `missing` dependencies, from the end of one of them.
    pub(super) fn verdict(&self, task: &Task, ended: TaskIndex, missing: usize) -> Verdict {
        let Some(ending) = self.ending(ended) else { return Verdict::Waits };
        match (task.role(ended), ending) {
            (DependencyRole::MustSucceed, Ending::Failed) => {
                Verdict::Never(SkipReason { reason: None, because_of: self.id(ended) })
            }
            (DependencyRole::MustFail, Ending::Succeeded) => Verdict::Never(SkipReason::without_failure(
                format!("it runs only if task {} fails, which succeeded", self.shown(ended)),
            )),
            (DependencyRole::MustSucceed | DependencyRole::MustFail, Ending::Skipped) => {
                Verdict::Never(self.passed_on(ended))
            }
            (DependencyRole::MustSucceed, Ending::Succeeded)
            | (DependencyRole::MustFail, Ending::Failed)
            | (DependencyRole::OneOfSeveral, Ending::Succeeded | Ending::Failed | Ending::Skipped) => {
                if missing > 1 {
                    return Verdict::Waits;
                }
                let succeeded = |task: &TaskIndex| self.ending(*task) == Some(Ending::Succeeded);
                let unmet = task.any().iter().find(|group| !group.iter().any(succeeded));
                unmet.map_or(Verdict::Starts, |group| Verdict::Never(self.none_of(group)))
            }
        }
    }

    /// The reason for a task that is skipped because `skipped` is.
    fn passed_on(&self, skipped: TaskIndex) -> SkipReason {
        match self.report(skipped).and_then(|report| report.because_of.clone()) {
            Some(failed) => SkipReason { reason: None, because_of: Some(failed) },
            None => SkipReason::without_failure(format!("task {} was skipped", self.shown(skipped))),
        }
    }

    /// The reason for a task that needs one of `group`, of which none succeeded.
    fn none_of(&self, group: &[TaskIndex]) -> SkipReason {
        let named: Vec<String> = group.iter().take(NAMED_MAX).map(|task| self.shown(*task)).collect();
        let more = if group.len() > NAMED_MAX { ", …" } else { "" };
        let failed = group.iter().find(|task| self.ending(**task) == Some(Ending::Failed));
        let behind = || group.iter().find_map(|task| self.report(*task)?.because_of.clone());
        let because_of = failed.and_then(|task| self.id(*task)).or_else(behind);
        SkipReason {
            reason: Some(format!("none of the tasks {}{more} succeeded", named.join(", "))),
            because_of,
        }
    }

    fn id(&self, task: TaskIndex) -> Option<TaskId> {
        self.graph.task(task).map(|task| task.id.clone())
    }

    fn shown(&self, task: TaskIndex) -> String {
        self.id(task).map(|id| id.to_string()).unwrap_or_default()
    }
}
