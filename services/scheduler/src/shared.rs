//! State that all parts of the scheduler share.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use index::actions::Actions;
use model::{Demand, Group, Millis, PoolName};
use parking_lot::Mutex;
use policy::actions::{GrantRules, HedgeRules, Routing};
use service::{Context, Current};
use settings::SchedulerSettings;
use tokio::sync::watch;

use crate::{Wakes, learned::Learned, view::View};

/// The shared state; cheap to clone.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) context: Context,
    pub(crate) actions: Actions,
    pub(crate) wakes: Wakes,
    pub(crate) view: Arc<View>,
    pub(crate) learned: Arc<Learned>,
    pub(crate) routing: Routing,
    pub(crate) grants: GrantRules,
    pub(crate) hedges: HedgeRules,
    /// Milliseconds by which each notified executor defers to better suited ones.
    pub(crate) probe_delay_ms: u64,
    pub(crate) lease_ttl: Duration,
    quotas: watch::Receiver<Current>,
    quiet: Arc<Mutex<HashMap<PoolName, Quiet>>>,
    seed: Arc<AtomicU64>,
}

/// Whether anything can wait in a pool, known without a read of the index.
#[derive(Debug, Default, Clone, Copy)]
struct Quiet {
    /// Number of events so far that may have made something wait in the pool.
    news: u64,
    /// Value of `news` when the index was last read and nothing waited; `None` if something waited.
    empty_at: Option<u64>,
}

impl Shared {
    pub(crate) fn new(
        context: Context,
        settings: &SchedulerSettings,
        actions: Actions,
        quotas: watch::Receiver<Current>,
    ) -> Self {
        let routing = Routing {
            probes: settings.probes.into(),
            affinity: settings.affinity,
            load_aware: settings.load_aware,
        };
        let grants = GrantRules {
            custom_patience: settings.custom_resource_patience,
            affinity_wait: if settings.affinity { settings.affinity_wait } else { Duration::ZERO },
        };
        let hedges = HedgeRules {
            most: settings.hedges.max,
            delay: settings.hedges.delay,
            by_history: settings.hedges.by_history,
            factor: settings.hedges.factor,
        };
        Self {
            learned: Arc::new(Learned::new(settings.sizing)),
            probe_delay_ms: settings.probe_delay_ms,
            lease_ttl: settings.lease_ttl,
            view: Arc::default(),
            wakes: Wakes::default(),
            quiet: Arc::default(),
            seed: Arc::new(AtomicU64::new(seed())),
            context,
            actions,
            routing,
            grants,
            hedges,
            quotas,
        }
    }

    /// Returns a different seed for random choices at each call.
    pub(crate) fn next_seed(&self) -> u64 {
        self.seed.fetch_add(1, Ordering::Relaxed)
    }

    /// Weight of a group in proportion to its quota.
    pub(crate) fn weight(&self, group: &Group) -> u64 {
        let current = self.quotas.borrow();
        policy::weight(current.as_ref().and_then(|governance| governance.quotas.of(group)))
    }

    /// When an additional copy is due of an execution that starts at `now`; `None` if never.
    pub(crate) fn hedge_at(&self, demand: &Demand, now: Millis) -> Option<Millis> {
        let slow_after = demand.slow_after_ms.map(Duration::from_millis);
        self.hedges.due(now, demand.hedges, slow_after).filter(|_| !demand.exclusive)
    }

    fn with_quiet<T>(&self, pool: &PoolName, change: impl FnOnce(&mut Quiet) -> T) -> T {
        let mut all = self.quiet.lock();
        change(all.entry(pool.clone()).or_default())
    }

    /// Notes that something may have started to wait in `pool`.
    pub(crate) fn news(&self, pool: &PoolName) {
        self.with_quiet(pool, |quiet| quiet.news += 1);
    }

    /// Value of the news counter of `pool`.
    pub(crate) fn news_of(&self, pool: &PoolName) -> u64 {
        self.with_quiet(pool, |quiet| quiet.news)
    }

    /// Records whether `pool` was `empty` when the index was read after event number `news`.
    pub(crate) fn note_quiet(&self, pool: &PoolName, empty: bool, news: u64) {
        self.with_quiet(pool, |quiet| quiet.empty_at = empty.then_some(news));
    }

    /// Whether nothing waits in `pool` as far as this scheduler knows.
    pub(crate) fn is_quiet(&self, pool: &PoolName) -> bool {
        self.with_quiet(pool, |quiet| quiet.empty_at == Some(quiet.news))
    }
}

/// A random number that differs in each process.
fn seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
