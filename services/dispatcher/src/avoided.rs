//! Workers that gave builds back because of faults of their own: other workers run these builds next.

use std::collections::HashMap;

use model::{BuildKey, WorkerId};

/// The workers that each waiting build avoids.
#[derive(Debug, Default)]
pub(crate) struct Avoided(HashMap<BuildKey, Vec<WorkerId>>);

impl Avoided {
    /// Notes that `worker` gave the build back.
    pub(crate) fn add(&mut self, key: &BuildKey, worker: &WorkerId) {
        let workers = self.0.entry(key.clone()).or_default();
        if !workers.contains(worker) {
            workers.push(worker.clone());
        }
    }

    /// Forgets a build that ended.
    pub(crate) fn remove(&mut self, key: &BuildKey) {
        self.0.remove(key);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn of(&self, key: &BuildKey) -> &[WorkerId] {
        self.0.get(key).map_or(&[], Vec::as_slice)
    }
}
