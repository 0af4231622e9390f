//! The loop of one pool: observes, plans, and writes the plan unless another autoscaler did.

use std::{sync::Arc, time::Duration};

use bus::BusError;
use index::{Index, IndexError};
use invariant::Present as _;
use model::{Millis, ScaleObservation, ScalePlan, ScaledPool};
use policy::autoscale::{Observation, PlannerSettings, PoolState, plan};
use serde::Deserialize as _;
use service::{Context, Current, ServiceError};
use settings::AutoscalerSettings;
use telemetry::metrics::{Counter, Gauge, Label, count, set};
use tokio::sync::{Notify, watch};
use tracing::{debug, info, warn};

use crate::{
    builds::Builds,
    executions::Executions,
    follow::{SharedState, scaled_pools},
    processes::{self, Process},
    quota::Limits,
    work::Work,
};

/// Polling interval of a pool that has no work and its target size.
const REST: Duration = Duration::from_secs(60);
/// Delay before another check while the log is being read.
const SOON: Duration = Duration::from_millis(200);
/// Delay before a retry after a fault.
const RETRY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(2);
/// Age from which a plan no longer indicates the current number of processes: it has not been followed for long.
const STALE: Duration = Duration::from_secs(300);

/// State shared by the loops of all pools.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) context: Context,
    pub(crate) index: Index,
    pub(crate) builds: SharedState<Builds>,
    pub(crate) executions: SharedState<Executions>,
    pub(crate) governance: watch::Receiver<Current>,
    pub(crate) settings: Arc<AutoscalerSettings>,
}

#[derive(Debug, thiserror::Error)]
enum ObserveError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error("the queue has not been read yet")]
    NotRead,
}

/// Plans until the service stops; `wake` is notified when something joins the queue.
pub(crate) async fn serve(
    shared: Shared,
    pool: ScaledPool,
    settings: PlannerSettings,
    wake: Arc<Notify>,
) -> Result<(), ServiceError> {
    let stop = shared.context.stop.clone();
    let tick = shared.settings.tick;
    let planner = Planner { shared, pool, settings, tick };
    let mut failing = false;
    loop {
        let (pause, resting) = match planner.plan_if_due().await {
            Ok(next) => {
                failing = false;
                next
            }
            // Happens after a start or a rebuild.
            Err(ObserveError::NotRead) => (SOON, false),
            Err(error @ (ObserveError::Index(_) | ObserveError::Bus(_))) => {
                if !failing {
                    let error = telemetry::error_chain(&error);
                    warn!(pool = %planner.pool, error, "cannot plan until Redis and the bus answer");
                }
                failing = true;
                (RETRY, false)
            }
        };
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
            () = wake.notified(), if resting => {}
        }
    }
}

struct Planner {
    shared: Shared,
    pool: ScaledPool,
    settings: PlannerSettings,
    tick: Duration,
}

impl Planner {
    /// Makes the plan that is due, unless another autoscaler has made it. Returns the pause until the next check, and
    /// whether an arrival in the queue should end it.
    async fn plan_if_due(&self) -> Result<(Duration, bool), ObserveError> {
        let (position, last) = self.shared.context.bus.buckets().get::<ScalePlan>(&self.pool).await?;
        let now = self.shared.context.bus.now();
        // A plan from the future means that the clock was set back since.
        let made = last.as_ref().filter(|last| last.at_ms.since(now) <= self.tick);
        let left = made.map_or(Duration::ZERO, |last| self.tick.saturating_sub(now.since(last.at_ms)));
        if !left.is_zero() {
            return Ok((left, false));
        }
        let (work, processes) = self.observe(last.as_ref(), now).await?;
        let plan = self.plan(last.as_ref(), &work, &processes, now);
        let written =
            self.shared.context.bus.buckets().compare_and_set(&self.pool, &plan, position, PATIENCE).await?;
        publish_metrics(&plan);
        if !written {
            debug!(pool = %self.pool, "another autoscaler made the plan first");
            return Ok((self.tick, false));
        }
        let before = last.as_ref().map(|last| last.desired);
        if before != Some(plan.desired) {
            info!(pool = %self.pool, desired = plan.desired, before, waiting = plan.seen.waiting, "{}", plan.why);
            let labels = [(Label::Pool, self.pool.to_string()), (Label::Reason, plan.reason.clone())];
            count(
                Counter::ScaleDecisions,
                &labels.each_ref().map(|(label, value)| (*label, value.as_str())),
                1,
            );
        }
        Ok(if is_at_rest(&plan, &work, &self.settings) { (REST, true) } else { (self.tick, false) })
    }

    /// Reads the work of the pool and its processes.
    async fn observe(
        &self,
        last: Option<&ScalePlan>,
        now: Millis,
    ) -> Result<(Work, Vec<Process>), ObserveError> {
        let counted = last.map(|last| last.upto);
        let service = Duration::from_millis(last.map_or(0, |last| last.seen.service_ms));
        match &self.pool {
            ScaledPool::Workers => {
                let index = &self.shared.index;
                is_ready(index.health().await?)?;
                let processes = processes::workers(index, now).await?;
                let governance = self.shared.governance.borrow().clone();
                let mut known = self.shared.builds.lock();
                let builds = known.as_mut().ok_or(ObserveError::NotRead)?;
                let work = builds.work(counted, service, Limits(governance.as_deref()), now);
                Ok((work, processes))
            }
            ScaledPool::Executors(pool) => {
                let actions = self.shared.index.actions();
                is_ready(actions.health().await?)?;
                let processes = processes::executors(&actions, pool, now).await?;
                let (backlog, running) = (actions.backlog().await?, actions.running(pool).await?);
                let scaled = scaled_pools(&self.shared.context.bus, &self.shared.settings).await?;
                let busy = actions.holders().await?.iter().map(ToString::to_string).collect();
                let mut known = self.shared.executions.lock();
                let executions = known.as_mut().ok_or(ObserveError::NotRead)?;
                executions.set_pools(scaled);
                let waiting = executions.waiting(pool, &backlog);
                let work = executions.work(pool, (waiting, running), counted, service, now);
                Ok((Work { busy, ..work }, processes))
            }
        }
    }

    fn plan(&self, last: Option<&ScalePlan>, work: &Work, processes: &[Process], now: Millis) -> ScalePlan {
        let settings = &self.shared.settings;
        let slots = match &self.pool {
            ScaledPool::Workers => settings.workspaces,
            ScaledPool::Executors(_) => settings.executor_slots,
        };
        let slots = last.map_or(u64::from(slots), |last| last.seen.slots);
        let recent = last.filter(|last| now.since(last.at_ms) <= STALE);
        let seen = processes::observe(work, processes, recent.map(|last| last.desired), slots);
        // Memory of another version, or none: starts empty, and nothing is removed until enough was observed.
        let memory = last.and_then(|last| PoolState::deserialize(&last.memory).ok()).unwrap_or_default();
        let (decided, memory) = plan(&memory, &observation(&seen), &self.settings, now);
        ScalePlan {
            pool: self.pool.clone(),
            tick: last.map_or(0, |last| last.tick).saturating_add(1),
            at_ms: now,
            desired: decided.desired,
            needed: decided.needed,
            reason: decided.reason.name().to_owned(),
            why: decided.reason.text().to_owned(),
            seen,
            upto: work.upto,
            memory: serde_json::to_value(&memory).present("the planner's memory as JSON"),
        }
    }
}

fn is_ready(health: Option<index::Health>) -> Result<(), ObserveError> {
    if health.is_some_and(|health| health.ready) { Ok(()) } else { Err(ObserveError::NotRead) }
}

/// Converts the observation to the planner's type.
fn observation(seen: &ScaleObservation) -> Observation {
    Observation {
        queued_work: Duration::from_millis(seen.queued_ms),
        waiting: seen.waiting,
        running: seen.running,
        arrived: seen.arrived,
        service: Duration::from_millis(seen.service_ms),
        oldest_wait: Duration::from_millis(seen.oldest_wait_ms),
        slots: seen.slots,
        alive: seen.alive,
        busy: seen.busy,
        starting: seen.starting,
        draining: seen.draining,
    }
}

/// Whether there is no work, no surplus process and none starting or draining: then nothing changes until
/// something joins the queue.
fn is_at_rest(plan: &ScalePlan, work: &Work, settings: &PlannerSettings) -> bool {
    let is_least = plan.desired <= settings.min;
    work.is_none() && is_least && plan.seen.alive == plan.desired && plan.seen.draining == 0
}

/// Publishes the plan as metrics.
fn publish_metrics(plan: &ScalePlan) {
    let pool = plan.pool.to_string();
    let gauge = |gauge, value: u64| {
        set(gauge, &[(Label::Pool, &pool)], i64::try_from(value).unwrap_or(i64::MAX));
    };
    let seen = &plan.seen;
    gauge(Gauge::PoolDesired, plan.desired);
    gauge(Gauge::PoolWaiting, seen.waiting);
    gauge(Gauge::PoolQueuedSeconds, seen.queued_ms.div_ceil(1000));
    gauge(Gauge::PoolOldestWaitSeconds, seen.oldest_wait_ms / 1000);
    let states = [
        ("ready", seen.alive),
        ("busy", seen.busy),
        ("starting", seen.starting),
        ("draining", seen.draining),
    ];
    for (state, value) in states {
        let labels = [(Label::Pool, pool.as_str()), (Label::State, state)];
        set(Gauge::PoolProcesses, &labels, i64::try_from(value).unwrap_or(i64::MAX));
    }
}
