//! The score of a job.

use model::{DependencyRole, TaskIndex, TaskStatus};

use super::{GraphRun, conditions::Ending};

impl GraphRun {
    /// The weighted mean of the judges' scores. A judge without a score counts as 0, unless it was not needed.
    pub(super) fn score(&self) -> Option<f64> {
        let needless = self.needless();
        let (mut given, mut weights) = (0.0, 0.0);
        for ((task, report), needless) in self.graph.tasks().iter().zip(&self.reports).zip(needless) {
            let Some(weight) = task.judge.map(f64::from).filter(|_| !needless) else { continue };
            let score = report.as_ref().filter(|report| report.status == TaskStatus::Succeeded);
            given += weight * score.and_then(|report| report.score).unwrap_or_default();
            weights += weight;
        }
        (weights > 0.0).then(|| given / weights)
    }

    /// Which tasks were skipped because they would have followed a failure that did not happen, or depend on such tasks.
    /// That only depends on how other tasks ended, not on the order of their ends.
    fn needless(&self) -> Vec<bool> {
        let mut needless = vec![false; self.graph.len()];
        for at in self.graph.order().iter().copied() {
            let Some(task) = self.graph.task(at).filter(|_| self.ending(at) == Some(Ending::Skipped)) else {
                continue;
            };
            let was = |task: TaskIndex| needless.get(task.get()).copied().unwrap_or_default();
            let is_needless = task.dependencies.iter().any(|dependency| match task.role(*dependency) {
                DependencyRole::MustSucceed => was(*dependency),
                DependencyRole::MustFail => {
                    was(*dependency) || self.ending(*dependency) == Some(Ending::Succeeded)
                }
                DependencyRole::OneOfSeveral => false,
            }) || task.any().iter().any(|group| group.iter().all(|task| was(*task)));
            if let Some(place) = needless.get_mut(at.get()) {
                *place = is_needless;
            }
        }
        needless
    }
}
