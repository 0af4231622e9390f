//! The kinds of executors: executors of a kind offer the same.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model::{ExecutorHeartbeat, Pool, Resources};
use policy::actions::{has_shared_services, offer_now};
use tokio::time::Instant;

/// How long the index of a kind that no executor has any more is kept for it: decisions about it end before.
const KEPT: Duration = Duration::from_secs(60);

/// All kinds that were seen. The index of a kind never changes, except for kinds of executors that ran shared services: there is
/// a kind for each start of such services.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    offers: Arc<Vec<Pool>>,
    /// The kinds with shared services that no executor has any more, and since when.
    unused: BTreeMap<usize, Instant>,
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
        let offer = offer_now(heartbeat);
        let is_same = |pool: &Pool| {
            pool.name == offer.name
                && pool.properties == offer.properties
                && pool.root_is_input == offer.root_is_input
                && pool.executor_type == offer.executor_type
        };
        if let Some(kind) = self.offers.iter().position(is_same) {
            self.unused.remove(&kind);
            if self.offers.get(kind).is_some_and(|known| !heartbeat.capacity.fits(&known.capacity)) {
                self.change(kind, |capacity| capacity.max(&heartbeat.capacity));
            }
            return kind;
        }
        self.version += 1;
        let offers = Arc::make_mut(&mut self.offers);
        let reusable = self.unused.iter().find(|(_, since)| since.elapsed() >= KEPT).map(|(kind, _)| *kind);
        if let Some(kind) = reusable
            && let Some(place) = offers.get_mut(kind)
        {
            self.unused.remove(&kind);
            *place = offer;
            return kind;
        }
        offers.push(offer);
        offers.len() - 1
    }

    /// Notes that an executor with this capacity left; `left` are the capacities of the other executors of the kind.
    pub(super) fn remove<'a>(
        &mut self,
        kind: usize,
        capacity: &Resources,
        left: impl Iterator<Item = &'a Resources>,
    ) {
        let Some(known) = self.offers.get(kind) else { return };
        let mut left = left.peekable();
        if left.peek().is_none() && has_shared_services(known) {
            self.unused.insert(kind, Instant::now());
        }
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
