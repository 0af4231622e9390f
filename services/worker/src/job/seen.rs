//! Computes the direct and indirect dependencies of tasks, limited to the tasks whose effects are read.

use std::sync::Arc;

use model::{Graph, TaskIndex};
use roaring::RoaringBitmap;

use super::world::number;

/// The tasks whose effects one task may see.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// The direct dependencies of the task.
    close: RoaringBitmap,
    /// The watched tasks among its direct and indirect dependencies.
    far: Arc<RoaringBitmap>,
}

impl Seen {
    /// Those of `tasks` that it may see.
    pub(crate) fn of(&self, tasks: &RoaringBitmap) -> RoaringBitmap {
        if tasks.is_empty() {
            return RoaringBitmap::new();
        }
        let mut seen = &self.close & tasks;
        if !self.far.is_empty() {
            seen |= &*self.far & tasks;
        }
        seen
    }
}

impl Seen {
    /// The visible tasks of `task`, for a task that [`Behind`] was already queried for. Cost: all its dependencies.
    pub(crate) fn again(graph: &Graph, task: TaskIndex, watched: &RoaringBitmap) -> Self {
        let dependencies =
            |index: TaskIndex| graph.task(index).map(|task| task.dependencies.as_slice()).unwrap_or_default();
        let close = dependencies(task).iter().map(|it| number(*it)).collect();
        let mut behind = RoaringBitmap::new();
        let mut next: Vec<TaskIndex> = dependencies(task).to_vec();
        while let Some(index) = next.pop() {
            if behind.insert(number(index)) {
                next.extend_from_slice(dependencies(index));
            }
        }
        Self { close, far: Arc::new(behind & watched) }
    }
}

/// The dependencies behind each task. Only watched tasks are recorded, and a set is dropped as soon as all dependents
/// have read it: a chain of 50,000 tasks holds one set, not 50,000.
#[derive(Debug)]
pub(crate) struct Behind {
    watched: RoaringBitmap,
    /// By task: the effects that its dependents see through it.
    through: Vec<Option<Arc<RoaringBitmap>>>,
    /// By task: the number of dependents that have not queried yet.
    asking: Vec<usize>,
    nothing: Arc<RoaringBitmap>,
}

impl Behind {
    /// For a job in which the effects of the `watched` tasks are read.
    pub(crate) fn new(graph: &Graph, watched: RoaringBitmap) -> Self {
        Self {
            watched,
            through: vec![None; graph.len()],
            asking: graph.tasks().iter().map(|task| task.dependants.len()).collect(),
            nothing: Arc::default(),
        }
    }

    /// The visible tasks of a task. Call it once for each task, after all tasks that it depends on.
    pub(crate) fn begin(&mut self, graph: &Graph, index: TaskIndex) -> Seen {
        let dependencies = graph.task(index).map(|task| task.dependencies.as_slice()).unwrap_or_default();
        let close: RoaringBitmap = dependencies.iter().map(|it| number(*it)).collect();
        if self.watched.is_empty() {
            return Seen { close, far: Arc::clone(&self.nothing) };
        }
        let mut far = Arc::clone(&self.nothing);
        for dependency in dependencies {
            let Some(slot) = self.through.get_mut(dependency.get()) else { continue };
            if let Some(more) = slot.as_ref().filter(|more| !Arc::ptr_eq(more, &far)) {
                if far.is_empty() {
                    far = Arc::clone(more);
                } else {
                    *Arc::make_mut(&mut far) |= &**more;
                }
            }
            if let Some(asking) = self.asking.get_mut(dependency.get()) {
                *asking = asking.saturating_sub(1);
                if *asking == 0 {
                    *slot = None;
                }
            }
        }
        let mut through = Arc::clone(&far);
        if self.watched.contains(number(index)) {
            Arc::make_mut(&mut through).insert(number(index));
        }
        if let Some(slot) = self.through.get_mut(index.get())
            && self.asking.get(index.get()).is_some_and(|asking| *asking > 0)
        {
            *slot = Some(through);
        }
        Seen { close, far }
    }
}
