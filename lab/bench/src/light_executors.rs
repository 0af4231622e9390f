//! Executors for a benchmark of schedulers: tasks of this process that run nothing. They send and receive what real
//! executors do, over a few connections.

mod common;
mod executor;
mod held;

use std::{sync::Arc, time::Duration};

use bus::{Bus, Patience};
use futures::{StreamExt as _, stream};
use model::{ExecutorType, Pool, Resources};
use service::Context;
use settings::Settings;
use tokio::{sync::Mutex, task::JoinSet, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use self::{common::Common, executor::LightExecutor};
use crate::{accepted, error::BenchError, farm::BenchFarm, ledger::Ledger};

/// Number of connections that all executors share.
const CONNECTIONS: u32 = 4;
/// Executors that start per second: 5,000 of them spread their heartbeats over the interval of 10 s.
const STARTS_PER_S: u32 = 500;
/// Bytes of memory for each slot.
const MEMORY_OF_SLOT: u64 = 1 << 30;
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// The executors of a farm. Without [`LightExecutors::end`], they end with this process.
pub(crate) struct LightExecutors {
    all: Vec<Arc<LightExecutor>>,
    common: Arc<Common>,
    tasks: Mutex<JoinSet<Result<(), BenchError>>>,
    connections: Vec<Bus>,
    stop: CancellationToken,
}

impl LightExecutors {
    /// Starts `count` executors with `slots` slots each, whose actions take the time `run`. Until they are opened, they
    /// report that they have no room.
    pub(crate) async fn start(
        farm: &BenchFarm,
        count: u32,
        slots: u16,
        run: Duration,
        ledger: Arc<Ledger>,
    ) -> Result<Self, BenchError> {
        let stop = CancellationToken::new();
        let settings = Settings {
            nats_url: farm.endpoints.nats.clone(),
            redis_url: farm.endpoints.redis.clone(),
            executor_slots: slots,
            ..Settings::default()
        };
        let mut contexts = Vec::new();
        for _ in 0..CONNECTIONS.min(count) {
            let connected =
                Context::connect(settings.service(), "executor", Patience::None, stop.clone()).await;
            contexts.push(connected.map_err(|error| BenchError::new("connecting executors", &error))?);
        }
        let pool = pool(slots)?;
        farm.client.bus().buckets().announce_pool(&pool).await?;
        let common = Arc::new(Common::new(settings.executor(), pool, ledger, run));
        let (mut all, mut tasks) = (Vec::new(), JoinSet::new());
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / STARTS_PER_S);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for (number, context) in (1..=count).zip(contexts.iter().cycle()) {
            ticks.tick().await;
            let executor = Arc::new(LightExecutor::new(context.clone(), common.clone(), number)?);
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

/// The pool of the executors, each with `slots` slots.
fn pool(slots: u16) -> Result<Pool, BenchError> {
    let capacity = Resources::new(u64::from(slots) * 1000, u64::from(slots) * MEMORY_OF_SLOT);
    Ok(Pool {
        name: accepted::pool()?,
        properties: std::collections::BTreeMap::new(),
        root_is_input: false,
        capacity,
        executor_type: ExecutorType::x86(),
    })
}
