//! The live executors, as their heartbeats report them, and the pools that may start more.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use bus::{Bus, BusError};
use index::{
    IndexError,
    actions::{Actions, Backlog},
};
use model::{Esu, ExecutorHeartbeat, ExecutorId, ExecutorStatus, Group, Needs, Occupancy, Pool, PoolName};
use parking_lot::Mutex;
use policy::{
    ScaledExecutors,
    actions::{Offers, preferred_pool},
    capacity,
};
use service::{Context, ServiceError, Subscription, request_heartbeats};
use tokio::{sync::Notify, time::Instant};

/// ESU that a waiting action counts as: the size of an action that asks for nothing.
const EACH_WAITING: Esu = Esu::ONE;

/// The last heartbeat of each executor. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Executors(Arc<Inner>);

#[derive(Default)]
struct Inner {
    live: Mutex<HashMap<ExecutorId, Heard>>,
    /// Notified when the first executor appears: a farm without executors and quotas is not governed.
    appeared: Notify,
}

struct Heard {
    expires_at: Instant,
    heartbeat: ExecutorHeartbeat,
}

impl Executors {
    fn record(&self, heartbeat: ExecutorHeartbeat) {
        let expires_at = Instant::now() + Duration::from_millis(heartbeat.ttl_ms);
        let mut live = self.0.live.lock();
        let had_none = live.is_empty();
        if heartbeat.status == ExecutorStatus::Gone {
            live.remove(&heartbeat.executor);
        } else {
            live.insert(heartbeat.executor.clone(), Heard { expires_at, heartbeat });
        }
        drop(live);
        if had_none {
            self.0.appeared.notify_one();
        }
    }

    /// Waits until an executor appears.
    pub(crate) async fn appeared(&self) {
        self.0.appeared.notified().await;
    }

    /// Whether no executor is live.
    pub(crate) fn is_empty(&self) -> bool {
        self.live().is_empty()
    }

    fn live(&self) -> Vec<ExecutorHeartbeat> {
        let now = Instant::now();
        let mut live = self.0.live.lock();
        live.retain(|_, heard| heard.expires_at > now);
        live.values().map(|heard| heard.heartbeat.clone()).collect()
    }

    /// ESU that the executors carry by type, at most `cap`, and what they offer. `scaled` are the
    /// maximum numbers of executors of pools that are scaled.
    pub(crate) async fn capacity(
        &self,
        bus: &Bus,
        scaled: &BTreeMap<PoolName, u16>,
        cap: &Occupancy,
    ) -> Result<Capacity, BusError> {
        let live = self.live();
        let (mut offers, mut may_start) = (Vec::new(), Vec::new());
        // A pool is registered by its first executor: before that, nothing is known of its executors.
        let known = if scaled.is_empty() { Vec::new() } else { bus.buckets().pools().await? };
        for pool in known {
            if let Some(max) = scaled.get(&pool.name) {
                may_start.push(ScaledExecutors {
                    pool: pool.name.clone(),
                    executor_type: pool.executor_type.clone(),
                    each: pool.capacity.clone(),
                    max: *max,
                });
                offers.push(pool);
            }
        }
        offers.extend(Offers::of(&live, &[], &BTreeSet::new()).present);
        Ok(Capacity { esu: capacity(&live, &may_start, cap), offers })
    }
}

/// The capacity of the executors at a decision.
#[derive(Debug, Default)]
pub(crate) struct Capacity {
    /// ESU that the executors carry; types without executors are missing.
    pub(crate) esu: Occupancy,
    /// What live executors offer, and those that may be started.
    offers: Vec<Pool>,
}

impl Capacity {
    /// ESU of the actions that wait for an executor, by group. An action that several types of executors could run counts
    /// for the type that is preferred; one that none could run counts for none.
    pub(crate) async fn backlog(&self, actions: &Actions) -> Result<BTreeMap<Group, Occupancy>, IndexError> {
        let mut all: BTreeMap<Group, Occupancy> = BTreeMap::new();
        for Backlog { requirements, groups } in actions.backlog().await? {
            let Some(pool) = preferred_pool(&requirements, &Needs::default(), &self.offers) else { continue };
            for (group, count) in groups {
                let waiting = EACH_WAITING.times(count as f64);
                all.entry(group).or_default().add(&pool.executor_type, waiting);
            }
        }
        Ok(all)
    }
}

/// Follows the executors until the service stops.
pub(crate) async fn follow(context: Context, executors: Executors) -> Result<(), ServiceError> {
    let mut heartbeats = Subscription::<ExecutorHeartbeat>::new(&context.bus, &()).await?;
    let mut reconnects = context.bus.reconnects();
    // Executors that are already live announce themselves when asked; new ones announce themselves when they start.
    request_heartbeats::<ExecutorHeartbeat>(&context.bus).await;
    loop {
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = reconnects.next() => request_heartbeats::<ExecutorHeartbeat>(&context.bus).await,
            heartbeat = heartbeats.next() => executors.record(heartbeat?.content),
        }
    }
}
