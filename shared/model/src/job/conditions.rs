//! Dependencies of a task that need not all succeed.

use crate::TaskIndex;

/// What a task that another one depends on must do so that the other one can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DependencyRole {
    MustSucceed,
    MustFail,
    /// One of several tasks of which at least one must succeed.
    OneOfSeveral,
}

/// Conditions of a task beside the success of tasks. No task has two roles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditions {
    /// Tasks that must fail. Ascending, each once.
    failed: Vec<TaskIndex>,
    /// Groups of at least two tasks; at least one of each must succeed.
    any: Vec<Vec<TaskIndex>>,
    /// The tasks of all groups. Ascending, each once.
    alternatives: Vec<TaskIndex>,
}

/// Why conditions can never be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contradiction {
    /// This task must succeed and fail.
    BothWays(TaskIndex),
    /// All tasks of a group must fail, such as this one.
    AllFail(TaskIndex),
}

/// Conditions as they are written in a job.
#[derive(Debug, Clone, Default)]
pub(super) struct NamedConditions {
    pub(super) failed: Vec<TaskIndex>,
    /// Groups of at least one task.
    pub(super) any: Vec<Vec<TaskIndex>>,
}

impl NamedConditions {
    /// Number of tasks that they name.
    pub(super) fn len(&self) -> usize {
        self.failed.len() + self.any.iter().map(Vec::len).sum::<usize>()
    }

    /// Resolves the conditions of a task that also needs the success of `dependencies`, and adds all tasks that it must
    /// wait for to them. Ascending and each once, before and after.
    pub(super) fn resolve(
        self,
        dependencies: &mut Vec<TaskIndex>,
    ) -> Result<Option<Box<Conditions>>, Contradiction> {
        let failed = ascending(self.failed);
        let must_fail = |task: &TaskIndex| failed.binary_search(task).is_ok();
        let (mut any, mut required) = (Vec::new(), std::mem::take(dependencies));
        for group in self.any {
            let first = group.first().copied();
            let possible = ascending(group.into_iter().filter(|task| !must_fail(task)).collect());
            match (possible.as_slice(), first) {
                ([], Some(first)) => return Err(Contradiction::AllFail(first)),
                ([], None) => {}
                ([only], _) => required.push(*only),
                ([_, _, ..], _) => any.push(possible),
            }
        }
        let required = ascending(required);
        if let Some(task) = required.iter().find(|task| must_fail(task)) {
            return Err(Contradiction::BothWays(*task));
        }
        // The other tasks of such a group have no effect.
        any.retain(|group| !group.iter().any(|task| required.binary_search(task).is_ok()));
        let alternatives = ascending(any.iter().flatten().copied().collect());
        *dependencies =
            ascending(required.into_iter().chain(failed.clone()).chain(alternatives.clone()).collect());
        let is_empty = failed.is_empty() && any.is_empty();
        Ok((!is_empty).then(|| Box::new(Conditions { failed, any, alternatives })))
    }
}

impl Conditions {
    /// The role of a dependency of the task.
    pub(super) fn role(&self, dependency: TaskIndex) -> DependencyRole {
        if self.failed.binary_search(&dependency).is_ok() {
            DependencyRole::MustFail
        } else if self.alternatives.binary_search(&dependency).is_ok() {
            DependencyRole::OneOfSeveral
        } else {
            DependencyRole::MustSucceed
        }
    }

    /// Groups of tasks, of each of which at least one must succeed.
    pub(super) fn any(&self) -> &[Vec<TaskIndex>] {
        &self.any
    }

    /// Tasks that must fail.
    pub(super) fn failed(&self) -> &[TaskIndex] {
        &self.failed
    }
}

fn ascending(mut tasks: Vec<TaskIndex>) -> Vec<TaskIndex> {
    tasks.sort_unstable();
    tasks.dedup();
    tasks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tasks(indices: &[usize]) -> Vec<TaskIndex> {
        indices.iter().map(|at| TaskIndex::at(*at)).collect()
    }

    fn resolve(
        required: &[usize],
        any: &[Vec<usize>],
        failed: &[usize],
    ) -> Result<(Vec<TaskIndex>, Option<Box<Conditions>>), Contradiction> {
        let mut dependencies = ascending(tasks(required));
        let any = any.iter().map(|group| tasks(group)).collect();
        let conditions = NamedConditions { any, failed: tasks(failed) }.resolve(&mut dependencies)?;
        Ok((dependencies, conditions))
    }

    #[test]
    fn what_can_be_said_simpler_is() {
        assert_eq!(resolve(&[1], &[vec![2, 2]], &[]), Ok((tasks(&[1, 2]), None)));
        assert_eq!(resolve(&[1], &[vec![1, 2]], &[]), Ok((tasks(&[1]), None)));
        assert_eq!(resolve(&[], &[vec![1, 2], vec![1]], &[]), Ok((tasks(&[1]), None)));
        let (dependencies, conditions) = resolve(&[], &[vec![3, 2]], &[3]).unwrap();
        assert_eq!((dependencies, conditions.unwrap().any().len()), (tasks(&[2, 3]), 0));
    }

    #[test]
    fn what_can_never_be_is_refused() {
        assert_eq!(resolve(&[1], &[], &[1]), Err(Contradiction::BothWays(TaskIndex::at(1))));
        assert_eq!(resolve(&[], &[vec![1, 2]], &[1, 2]), Err(Contradiction::AllFail(TaskIndex::at(1))));
        assert_eq!(resolve(&[2], &[vec![1, 2]], &[2]), Err(Contradiction::BothWays(TaskIndex::at(2))));
    }

    proptest! {
        /// Resolved conditions are met by the same sets of succeeded tasks as the named ones, if all others failed.
        #[test]
        fn resolved_conditions_mean_what_was_named(
            required in prop::collection::vec(0..6_usize, 0..2),
            any in prop::collection::vec(prop::collection::vec(0..6_usize, 1..4), 0..3),
            failed in prop::collection::vec(0..6_usize, 0..2),
        ) {
            let resolved = resolve(&required, &any, &failed);
            let mut met = false;
            for succeeded in 0_u32..1 << 6 {
                let has = |task: usize| succeeded & (1 << task) != 0;
                let named = required.iter().all(|task| has(*task))
                    && any.iter().all(|group| group.iter().any(|task| has(*task)))
                    && !failed.iter().any(|task| has(*task));
                met |= named;
                let Ok((dependencies, conditions)) = &resolved else { continue };
                let role = |task| conditions.as_ref().map_or(DependencyRole::MustSucceed, |it| it.role(task));
                let any = conditions.as_ref().map_or(&[][..], |it| it.any());
                let found = dependencies.iter().all(|task| match role(*task) {
                    DependencyRole::MustSucceed => has(task.get()),
                    DependencyRole::MustFail => !has(task.get()),
                    DependencyRole::OneOfSeveral => any.iter().flatten().any(|it| it == task),
                }) && any.iter().all(|group| group.iter().any(|task| has(task.get())));
                prop_assert_eq!(named, found, "{:06b}", succeeded);
            }
            prop_assert_eq!(met, resolved.is_ok());
        }
    }
}
