//! Executors for a benchmark of schedulers: tasks of this process that run nothing. They send and receive what real
//! executors do, over a few connections.

mod common;
mod executor;
mod held;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bus::{Bus, Patience};
use futures::{StreamExt as _, stream};
use model::{ExecutorType, Pool, PoolName, Resources};
use service::Context;
use settings::Settings;
use tokio::{sync::Mutex, task::JoinSet, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;

pub(crate) use self::common::RunTimes;
use self::{common::Common, executor::LightExecutor};
use crate::{error::BenchError, farm::BenchFarm, ledger::Ledger};

/// Number of connections that all executors share.
const CONNECTIONS: usize = 4;
/// Executors that start per second: 5,000 of them spread their heartbeats over the interval of 10 s.
const STARTS_PER_S: u32 = 500;
/// Bytes of memory for each slot.
const MEMORY_OF_SLOT: u64 = 1 << 30;
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// The executors to start, and how long their actions run.
pub(crate) struct Fleet {
    /// The pool of each executor, with its capacity.
    pub(crate) pools: Vec<Arc<Pool>>,
    /// Number of slots of each executor.
    pub(crate) slots: u16,
    /// How long actions run on the executors.
    pub(crate) run: RunTimes,
}

/// The executors of a farm. Without [`LightExecutors::end`], they end with this process.
pub(crate) struct LightExecutors {
    all: Vec<Arc<LightExecutor>>,
    common: Arc<Common>,
    tasks: Mutex<JoinSet<Result<(), BenchError>>>,
    connections: Vec<Bus>,
    stop: CancellationToken,
}

impl LightExecutors {
    /// Starts the executors of `fleet`. Until they are opened, they report that they have no room.
    pub(crate) async fn start(
        farm: &BenchFarm,
        fleet: Fleet,
        ledger: Arc<Ledger>,
    ) -> Result<Self, BenchError> {
        let Fleet { pools, slots, run } = fleet;
        let stop = CancellationToken::new();
        let settings = Settings {
            nats_url: farm.endpoints.nats.clone(),
            redis_url: farm.endpoints.redis.clone(),
            executor_slots: slots,
            ..Settings::default()
        };
        let mut contexts = Vec::new();
        for _ in 0..CONNECTIONS.min(pools.len()) {
            let connected =
                Context::connect(settings.service("executor"), "executor", Patience::None, stop.clone())
                    .await;
            contexts.push(connected.map_err(|error| BenchError::new("connecting executors", &error))?);
        }
        let kinds: BTreeMap<&PoolName, &Arc<Pool>> = pools.iter().map(|pool| (&pool.name, pool)).collect();
        for pool in kinds.into_values() {
            farm.client.bus().buckets().announce_pool(pool).await?;
        }
        let common = Arc::new(Common::new(settings.executor(), ledger, run));
        let (mut all, mut tasks) = (Vec::new(), JoinSet::new());
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / STARTS_PER_S);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for ((number, pool), context) in (1..).zip(pools).zip(contexts.iter().cycle()) {
            ticks.tick().await;
            let executor = Arc::new(LightExecutor::new(context.clone(), common.clone(), pool, number)?);
            tasks.spawn(executor.clone().serve());
            all.push(executor);
        }
        let connections = contexts.into_iter().map(|context| context.bus).collect();
        Ok(Self { all, common, tasks: Mutex::new(tasks), connections, stop })
    }

    /// Makes all executors report their room from now on.
    pub(crate) async fn open(&self) {
        self.common.open();
        stream::iter(&self.all).for_each(|executor| executor.report_room()).await;
    }

    /// Returns why an executor failed, when one does.
    pub(crate) async fn failed(&self) -> BenchError {
        match self.tasks.lock().await.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Ok(Ok(())) | Err(_)) | None => BenchError::plain("an executor ended unexpectedly"),
        }
    }

    /// Ends all executors at once, without a final heartbeat, and closes their connections.
    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.tasks.into_inner().shutdown().await;
        for connection in self.connections {
            connection.close(CLOSING_MAX).await;
        }
    }
}

/// A pool of executors with `slots` slots each, which offer these properties.
pub(crate) fn pool(name: PoolName, slots: u16, properties: BTreeMap<String, Vec<String>>) -> Pool {
    let capacity = Resources::new(u64::from(slots) * 1000, u64::from(slots) * MEMORY_OF_SLOT);
    Pool { name, properties, root_is_input: false, capacity, executor_type: ExecutorType::x86() }
}
