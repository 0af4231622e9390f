//! Computes the direct and indirect dependencies of tasks, limited to the tasks whose effects are read.

use std::sync::Arc;

use invariant::{Present as _, impossible};
use model::{DependencyRole, Graph, TaskIndex};
use roaring::RoaringBitmap;

use crate::task_number::number;

/// The tasks whose effects one task may see.
#[derive(Debug, Clone, Default)]
pub(crate) struct VisibleEffects {
    /// The direct dependencies of the task.
    direct: RoaringBitmap,
    /// The watched tasks among its direct and indirect dependencies.
    indirect: Arc<RoaringBitmap>,
}

impl VisibleEffects {
    /// Those of `tasks` that it may see.
    pub(crate) fn of(&self, tasks: &RoaringBitmap) -> RoaringBitmap {
        if tasks.is_empty() {
            return RoaringBitmap::new();
        }
        let mut seen = &self.direct & tasks;
        if !self.indirect.is_empty() {
            seen |= &*self.indirect & tasks;
        }
        seen
    }
}

/// Whether `task` also sees what its dependency saw: only if that must succeed. Others may never run, or have ended in any
/// way, so what they saw would depend on more than the results.
fn passes_on(graph: &Graph, task: TaskIndex, dependency: TaskIndex) -> bool {
    graph.task(task).is_some_and(|task| task.role(dependency) == DependencyRole::MustSucceed)
}

impl VisibleEffects {
    /// The visible tasks of `task`, for a task that [`IndirectDependencies`] was already queried for. The cost grows
    /// with the number of all its dependencies.
    pub(crate) fn recompute(graph: &Graph, task: TaskIndex, watched: &RoaringBitmap) -> Self {
        let dependencies = |index: TaskIndex| {
            graph.task(index).map(|task| task.dependencies.as_slice()).present("a task of the job")
        };
        let direct = dependencies(task).iter().map(|it| number(*it)).collect();
        let (mut behind, mut passed) = (RoaringBitmap::new(), RoaringBitmap::new());
        let mut next: Vec<TaskIndex> = vec![task];
        while let Some(index) = next.pop() {
            for dependency in dependencies(index) {
                behind.insert(number(*dependency));
                if passes_on(graph, index, *dependency) && passed.insert(number(*dependency)) {
                    next.push(*dependency);
                }
            }
        }
        Self { direct, indirect: Arc::new(behind & watched) }
    }
}

/// The indirect dependencies of each task. Only watched tasks are recorded, and a set is dropped as soon as all
/// dependents have read it: a chain of 50,000 tasks holds one set, not 50,000.
#[derive(Debug)]
pub(crate) struct IndirectDependencies {
    watched: RoaringBitmap,
    /// By task: the effects that its dependents see through it.
    passed: Vec<Option<Arc<RoaringBitmap>>>,
    /// By task: the number of dependents that have not queried yet.
    waiting: Vec<usize>,
    nothing: Arc<RoaringBitmap>,
}

impl IndirectDependencies {
    /// For a job in which the effects of the `watched` tasks are read.
    pub(crate) fn new(graph: &Graph, watched: RoaringBitmap) -> Self {
        Self {
            watched,
            passed: vec![None; graph.len()],
            waiting: graph.tasks().iter().map(|task| task.dependants.len()).collect(),
            nothing: Arc::default(),
        }
    }

    /// The visible tasks of a task. Call it once for each task, after all tasks that it depends on.
    pub(crate) fn begin(&mut self, graph: &Graph, index: TaskIndex) -> VisibleEffects {
        let dependencies =
            graph.task(index).map(|task| task.dependencies.as_slice()).present("a task of the job");
        let direct: RoaringBitmap = dependencies.iter().map(|it| number(*it)).collect();
        if self.watched.is_empty() {
            return VisibleEffects { direct, indirect: Arc::clone(&self.nothing) };
        }
        let mut indirect = Arc::clone(&self.nothing);
        for dependency in dependencies {
            let Some(passed_on) = self.passed.get_mut(dependency.get()) else {
                impossible!("task {} has no place for the effects that it passes on", dependency.get());
                continue;
            };
            let is_open = passes_on(graph, index, *dependency);
            if let Some(more) = passed_on.as_ref().filter(|more| is_open && !Arc::ptr_eq(more, &indirect)) {
                if indirect.is_empty() {
                    indirect = Arc::clone(more);
                } else {
                    *Arc::make_mut(&mut indirect) |= &**more;
                }
            }
            if let Some(waiting) = self.waiting.get_mut(dependency.get()) {
                *waiting = waiting.saturating_sub(1);
                if *waiting == 0 {
                    *passed_on = None;
                }
            } else {
                impossible!("the dependents of task {} are not counted", dependency.get());
            }
        }
        let mut passed = Arc::clone(&indirect);
        for seen in dependencies.iter().filter(|it| !passes_on(graph, index, **it)).map(|it| number(*it)) {
            if self.watched.contains(seen) {
                Arc::make_mut(&mut passed).insert(seen);
            }
        }
        if self.watched.contains(number(index)) {
            Arc::make_mut(&mut passed).insert(number(index));
        }
        if let Some(passed_on) = self.passed.get_mut(index.get())
            && self.waiting.get(index.get()).is_some_and(|waiting| *waiting > 0)
        {
            *passed_on = Some(passed);
        }
        VisibleEffects { direct, indirect }
    }
}
