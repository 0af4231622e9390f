//! Which tasks lie behind which, as far as anyone looks at what they did.

use std::sync::Arc;

use model::{Graph, TaskIndex};
use roaring::RoaringBitmap;

use super::world::number;

/// What one task may see of what others did.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// Its dependencies.
    close: RoaringBitmap,
    /// Of the tasks that are watched, those that lie behind it.
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
    /// What `task` may see, for a task that [`Behind`] was asked for before. Cost: all that lies behind it.
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

/// What lies behind each task. Only tasks that are watched are noted, and a set is kept no longer than somebody may ask
/// for it: 50,000 tasks in a row hold one set, not 50,000.
#[derive(Debug)]
pub(crate) struct Behind {
    watched: RoaringBitmap,
    /// By task: what whoever depends on it sees through it.
    through: Vec<Option<Arc<RoaringBitmap>>>,
    /// By task: how many that depend on it have not asked yet.
    asking: Vec<usize>,
    nothing: Arc<RoaringBitmap>,
}

impl Behind {
    /// Of a job in which the effects of these tasks are `watched`.
    pub(crate) fn new(graph: &Graph, watched: RoaringBitmap) -> Self {
        Self {
            watched,
            through: vec![None; graph.len()],
            asking: graph.tasks().iter().map(|task| task.dependants.len()).collect(),
            nothing: Arc::default(),
        }
    }

    /// What `task` sees. To be asked once for each task, after it was asked for all that it depends on.
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
