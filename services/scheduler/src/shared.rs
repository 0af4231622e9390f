//! State that all parts of the scheduler share.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use index::actions::Actions;
use model::{ActionOrder, Demand, Esu, ExecutorType, Group, Millis, Pool};
use parking_lot::Mutex;
use policy::actions::{GrantRules, HedgeRules};
use service::{Context, Current};
use settings::SchedulerSettings;
use tokio::{sync::watch, time::Instant};

use crate::{Wakes, learned::Learned, queues::Queues, view::View};

/// Time for which a scheduler sends notices of its grants after it noticed another one.
const PEERS: Duration = Duration::from_secs(60);

/// The shared state; cheap to clone.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) context: Context,
    pub(crate) actions: Actions,
    pub(crate) wakes: Wakes,
    pub(crate) view: Arc<View>,
    pub(crate) learned: Arc<Learned>,
    /// Whether executions prefer executors where they are warm.
    pub(crate) affinity: bool,
    /// The order of a group's executions of the same rank.
    pub(crate) order: ActionOrder,
    pub(crate) grants: GrantRules,
    pub(crate) hedges: HedgeRules,
    pub(crate) lease_ttl: Duration,
    quotas: watch::Receiver<Current>,
    pub(crate) queues: Arc<Queues>,
    /// Held from a decision until its grants are sent: decisions made in between would use the same room.
    pub(crate) granting: Arc<tokio::sync::Mutex<()>>,
    /// Whether another scheduler applies records before this one.
    follows: Arc<AtomicBool>,
    /// When other schedulers were last noticed.
    peers: Arc<Mutex<Option<Instant>>>,
    seed: Arc<AtomicU64>,
}

impl Shared {
    pub(crate) fn new(
        context: Context,
        settings: &SchedulerSettings,
        actions: Actions,
        quotas: watch::Receiver<Current>,
    ) -> Self {
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
            lease_ttl: settings.lease_ttl,
            view: Arc::default(),
            wakes: Wakes::default(),
            queues: Arc::default(),
            follows: Arc::default(),
            peers: Arc::default(),
            granting: Arc::default(),
            seed: Arc::new(AtomicU64::new(seed())),
            context,
            actions,
            affinity: settings.affinity,
            order: settings.order,
            grants,
            hedges,
            quotas,
        }
    }

    /// Whether another scheduler applied records before this one. That one also grants what waits; this one checks
    /// whether something is left.
    pub(crate) fn follows(&self) -> bool {
        self.follows.load(Ordering::Relaxed)
    }

    /// Notes whether another scheduler applied the last records before this one.
    pub(crate) fn set_follows(&self, follows: bool) {
        self.follows.store(follows, Ordering::Relaxed);
    }

    /// Wakes the dispatcher because something waits or an executor has room: at once, or after some time if another
    /// scheduler does the same at once.
    pub(crate) fn wake(&self) {
        let wake = if self.follows() { &self.wakes.check } else { &self.wakes.dispatch };
        wake.notify_one();
    }

    /// Notes that another scheduler works.
    pub(crate) fn note_peers(&self) {
        *self.peers.lock() = Some(Instant::now());
    }

    /// Whether other schedulers worked in the last [`PEERS`].
    pub(crate) fn has_peers(&self) -> bool {
        self.peers.lock().is_some_and(|at| at.elapsed() < PEERS)
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

    /// ESU that a group may hold on these kinds of executors while others wait; `None` if no group has a
    /// quota of their executor types.
    pub(crate) fn share<'a>(&self, group: &Group, kinds: impl Iterator<Item = &'a Pool>) -> Option<f64> {
        let current = self.quotas.borrow();
        let known = current.as_ref()?;
        let types: BTreeSet<&ExecutorType> = kinds.map(|kind| &kind.executor_type).collect();
        let shares = types.into_iter().filter_map(|kind| {
            policy::set_point(group, kind, &known.quotas, &known.totals, &known.record).map(Esu::units)
        });
        shares.reduce(|sum, share| sum + share)
    }

    /// When an additional copy is due of an execution that starts at `now`; `None` if never: another
    /// copy would disturb one that is measured or uses shared services, and one that needs an executor for itself.
    pub(crate) fn hedge_at(&self, demand: &Demand, now: Millis) -> Option<Millis> {
        let slow_after = demand.slow_after_ms.map(Duration::from_millis);
        if demand.exclusive || demand.single {
            return None;
        }
        self.hedges.due(now, demand.hedges, slow_after)
    }
}

/// A random number that differs in each process.
fn seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
