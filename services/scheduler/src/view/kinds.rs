//! The kinds of executors: executors of a kind offer the same.

use std::sync::Arc;

use model::{ExecutorHeartbeat, Pool, Resources};

/// All kinds that were seen. The index of a kind never changes.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    offers: Arc<Vec<Pool>>,
    /// Counts the changes of `offers`.
    version: u64,
}

/// The kinds of executors at one time.
#[derive(Debug, Clone)]
pub(crate) struct KnownKinds {
    /// What the executors of each kind offer, with the capacity of the largest one.
    pub(crate) offers: Arc<Vec<Pool>>,
    /// Differs if the offers differ.
    pub(crate) version: u64,
}

impl Kinds {
    /// The kind of an executor, which is added if it is new.
    pub(super) fn of(&mut self, heartbeat: &ExecutorHeartbeat) -> usize {
        let is_same = |pool: &Pool| {
            pool.name == heartbeat.pool
                && pool.properties == heartbeat.properties
                && pool.root_is_input == heartbeat.root_is_input
                && pool.executor_type == heartbeat.executor_type
        };
        if let Some(kind) = self.offers.iter().position(is_same) {
            if self.offers.get(kind).is_some_and(|known| !heartbeat.capacity.fits(&known.capacity)) {
                self.change(kind, |capacity| capacity.max(&heartbeat.capacity));
            }
            return kind;
        }
        Arc::make_mut(&mut self.offers).push(heartbeat.offer());
        self.version += 1;
        self.offers.len() - 1
    }

    /// Notes that an executor with this capacity left; `left` are the capacities of the other executors of the kind.
    pub(super) fn remove<'a>(
        &mut self,
        kind: usize,
        capacity: &Resources,
        left: impl Iterator<Item = &'a Resources>,
    ) {
        let Some(known) = self.offers.get(kind) else { return };
        // Another one may be as large: only executors of unequal sizes make this a search.
        let most = left.fold(Resources::default(), |most, capacity| most.max(capacity));
        if *capacity == known.capacity && most != known.capacity {
            self.change(kind, |_| most);
        }
    }

    fn change(&mut self, kind: usize, capacity: impl FnOnce(&Resources) -> Resources) {
        if let Some(pool) = Arc::make_mut(&mut self.offers).get_mut(kind) {
            pool.capacity = capacity(&pool.capacity);
            self.version += 1;
        }
    }

    pub(super) fn known(&self) -> KnownKinds {
        KnownKinds { offers: Arc::clone(&self.offers), version: self.version }
    }

    pub(super) fn get(&self, kind: usize) -> Option<&Pool> {
        self.offers.get(kind)
    }
}
