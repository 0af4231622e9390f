//! Finds the tasks that affect a path.

use std::{collections::BTreeMap, ops::Bound};

use model::{Graph, JobPath, Step};
use roaring::RoaringBitmap;

use crate::task_number::number;

/// The paths where the effects of tasks begin, with these tasks.
pub(crate) struct EffectPaths {
    tasks: BTreeMap<String, Vec<u32>>,
}

impl EffectPaths {
    pub(crate) fn of(graph: &Graph) -> Self {
        let mut tasks: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (index, task) in graph.indexed() {
            let mut add =
                |path: &JobPath| tasks.entry(path.as_str().to_owned()).or_default().push(number(index));
            match &task.step {
                Step::Command(command) => command.outputs.iter().for_each(add),
                Step::Fetch { to, .. }
                | Step::Extract { to, .. }
                | Step::Archive { to, .. }
                | Step::Copy { to, .. }
                | Step::Truncate { to, .. } => add(to),
                Step::Rename { from, to, .. } => {
                    add(from);
                    add(to);
                }
                Step::MakeFolder(path) | Step::Remove(path) => add(path),
                Step::Exists { .. } | Step::Compare(_) => {}
            }
        }
        Self { tasks }
    }

    /// Tasks whose effects begin at `path`, above or below it.
    pub(crate) fn affecting(&self, path: &str) -> RoaringBitmap {
        let mut all = RoaringBitmap::new();
        let above = path.match_indices('/').filter_map(|(at, _)| path.get(..at));
        for place in std::iter::once("").chain(above).chain((!path.is_empty()).then_some(path)) {
            all.extend(self.tasks.get(place).into_iter().flatten());
        }
        // '0' is the character after '/'.
        let below = if path.is_empty() {
            self.tasks.range::<str, _>((Bound::Unbounded, Bound::Unbounded))
        } else {
            let (from, to) = (format!("{path}/"), format!("{path}0"));
            self.tasks.range::<str, _>((Bound::Included(&*from), Bound::Excluded(&*to)))
        };
        for (_, tasks) in below {
            all.extend(tasks);
        }
        all
    }
}
