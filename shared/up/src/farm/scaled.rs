//! Applies the plans of the autoscaler to the farm.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use bus::{Bus, Subject};
use invariant::impossible;
use model::{
    Control, ExecutorControl, ExecutorHeartbeat, ExecutorId, ExecutorStatus, Heartbeat, Millis, ScalePlan,
    ScaledPool, WorkerId, WorkerStatus, WorkspaceState,
};
use service::host_name;
use tracing::{info, warn};

use super::Farm;
use crate::{
    child::Supervisor,
    error::UpError,
    nats,
    scale::{HeartbeatState, LOOK, Pool, Step},
    services,
    stages::{GRACE, stage},
};

/// Delay before a retry after an error.
const AGAIN: Duration = Duration::from_secs(1);

/// Latest heartbeats of the processes of this machine, by process id.
#[derive(Default)]
struct Heartbeats {
    host: String,
    processes: HashMap<u32, (BusId, HeartbeatState)>,
}

/// Id of a process on the bus.
#[derive(Clone)]
enum BusId {
    Worker(WorkerId),
    Executor(ExecutorId),
}

impl Farm {
    /// Follows the plans without end.
    pub(crate) async fn scale(&mut self, nats: &str) {
        if self.pools.is_empty() || self.args.no_services {
            return std::future::pending().await;
        }
        loop {
            let ended = self.follow_plans(nats).await;
            let why = ended
                .map_or_else(|error| telemetry::error_chain(&error), |()| "the subscription ended".into());
            warn!("cannot follow the plans of the autoscaler, retrying: {why}");
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn follow_plans(&mut self, url: &str) -> Result<(), UpError> {
        let bus = nats::connect(&self.bus(url), self.patience).await?;
        let mut plans = bus.buckets().changes::<ScalePlan>().await?;
        let mut workers = bus.listen::<Heartbeat>(&()).await?;
        let mut executors = bus.listen::<ExecutorHeartbeat>(&()).await?;
        let mut reconnects = bus.reconnects();
        let mut heartbeats = Heartbeats::new();
        loop {
            // At the start and after a lost connection, when messages may have been missed.
            for plan in bus.buckets().all::<ScalePlan>().await?.values() {
                self.apply_plan(plan, bus.now());
            }
            loop {
                self.take_steps(&bus, &heartbeats).await;
                let moving = self.pools.iter().any(Pool::is_moving);
                tokio::select! {
                    plan = plans.next() => match plan {
                        Some(plan) => self.apply_plan(&plan, bus.now()),
                        None => return Ok(()),
                    },
                    Some(message) = workers.next() => heartbeats.observe_worker(message.content),
                    Some(message) = executors.next() => heartbeats.observe_executor(message.content),
                    () = reconnects.next() => break,
                    () = tokio::time::sleep(LOOK), if moving => {}
                }
            }
        }
    }

    /// Applies a plan, unless it was made for an earlier farm.
    fn apply_plan(&mut self, plan: &ScalePlan, now: Millis) {
        if now.since(plan.at_ms) > self.began.elapsed() {
            return;
        }
        if let Some(pool) = self.pools.iter_mut().find(|pool| *pool.name() == plan.pool) {
            pool.set_target(plan.desired);
        }
    }

    async fn take_steps(&mut self, bus: &Bus, heartbeats: &Heartbeats) {
        let now = Instant::now();
        self.remove_exited();
        let roster = &self.roster;
        let heard = |name: &str| Some(heartbeats.processes.get(&roster.pid(name)?)?.1);
        let mut todo: Vec<(ScaledPool, &'static str, Step)> = Vec::new();
        for pool in &mut self.pools {
            let (name, service) = (pool.name().clone(), pool.service());
            todo.extend(pool.steps(heard, now).into_iter().map(|step| (name.clone(), service, step)));
        }
        for (pool, service, step) in todo {
            self.carry_out(bus, heartbeats, &pool, service, step).await;
        }
        self.publish_metrics();
    }

    async fn carry_out(
        &mut self,
        bus: &Bus,
        heartbeats: &Heartbeats,
        pool: &ScaledPool,
        service: &'static str,
        step: Step,
    ) {
        let process =
            |name: &str| heartbeats.processes.get(&self.roster.pid(name)?).map(|(id, _)| id.clone());
        let done = match step {
            Step::Ask => ask(bus, pool).await,
            Step::Start(name) => {
                if let Some(spec_factory) = &self.spec_factory {
                    info!(%pool, name, "starting a process");
                    let spec = spec_factory.spec(&self.folder, &name, service);
                    self.supervisors.push(Supervisor::start(spec, self.roster.clone()));
                } else {
                    impossible!("process {name} starts before the services");
                }
                Ok(())
            }
            Step::Drain(name) => {
                info!(%pool, name, "draining a process");
                order(bus, process(&name), true).await
            }
            Step::Resume(name) => {
                info!(%pool, name, "resuming a process");
                order(bus, process(&name), false).await
            }
            Step::Stop(name) => {
                info!(%pool, name, "stopping an idle process");
                let drain = Duration::from_secs(self.settings.drain_seconds);
                let grace = stage(&name, drain).1.max(GRACE);
                self.supervisors
                    .iter()
                    .filter(|supervisor| supervisor.name() == name)
                    .for_each(|supervisor| supervisor.stop(grace));
                Ok(())
            }
        };
        if let Err(error) = done {
            // Repeated until the heartbeats show the effect.
            warn!(%pool, error = telemetry::error_chain(&error), "cannot send an order to a process");
        }
    }

    /// Removes processes that have exited.
    fn remove_exited(&mut self) {
        for pool in &mut self.pools {
            for name in pool.names() {
                let gone = self
                    .supervisors
                    .iter()
                    .any(|supervisor| supervisor.name() == name && supervisor.has_ended());
                if gone {
                    self.supervisors.retain(|supervisor| supervisor.name() != name);
                    self.roster.shows_metrics(&name, None);
                    pool.forget(&name);
                }
            }
        }
    }

    /// Publishes the metrics URLs of new processes.
    fn publish_metrics(&mut self) {
        for pool in &mut self.pools {
            for name in pool.unlisted() {
                if let Some(url) = services::metrics(&self.folder, &name) {
                    self.roster.shows_metrics(&name, Some(url));
                    pool.mark_listed(&name);
                }
            }
        }
    }
}

async fn ask(bus: &Bus, pool: &ScaledPool) -> Result<(), UpError> {
    let subject = match pool {
        ScaledPool::Workers => Subject::Announce,
        ScaledPool::Executors(_) => Subject::ExecutorAnnounce,
    };
    Ok(bus.signal(&subject).await?)
}

/// Drains or resumes a process. One without a heartbeat yet receives the order later.
async fn order(bus: &Bus, process: Option<BusId>, drain: bool) -> Result<(), UpError> {
    match process {
        None => Ok(()),
        Some(BusId::Worker(worker)) => {
            let order = if drain { Control::Drain } else { Control::Resume };
            Ok(bus.send(&worker, &order).await?)
        }
        Some(BusId::Executor(executor)) => {
            let order = if drain { ExecutorControl::Drain } else { ExecutorControl::Resume };
            Ok(bus.order_executor(&executor, &order).await?)
        }
    }
}

impl Heartbeats {
    fn new() -> Self {
        Self { host: host_name(), processes: HashMap::new() }
    }

    fn observe_worker(&mut self, heartbeat: Heartbeat) {
        let busy = heartbeat.workspaces.iter().any(|state| matches!(state, WorkspaceState::Busy { .. }));
        let draining = match heartbeat.status {
            WorkerStatus::Ready | WorkerStatus::Full => Some(false),
            WorkerStatus::Draining => Some(true),
            WorkerStatus::Gone => None,
        };
        self.record(&heartbeat.host, heartbeat.pid, BusId::Worker(heartbeat.worker), draining, busy);
    }

    fn observe_executor(&mut self, heartbeat: ExecutorHeartbeat) {
        let draining = match heartbeat.status {
            ExecutorStatus::Ready | ExecutorStatus::Closed => Some(false),
            ExecutorStatus::Draining => Some(true),
            ExecutorStatus::Gone => None,
        };
        self.record(
            &heartbeat.host,
            heartbeat.pid,
            BusId::Executor(heartbeat.executor),
            draining,
            !heartbeat.running.is_empty(),
        );
    }

    /// Records a heartbeat; `draining` is `None` for a process that has stopped.
    fn record(&mut self, host: &str, pid: u32, id: BusId, draining: Option<bool>, busy: bool) {
        if host != self.host {
            return;
        }
        match draining {
            Some(draining) => {
                let heard = HeartbeatState { at: Instant::now(), draining, busy };
                self.processes.insert(pid, (id, heard));
            }
            None => {
                self.processes.remove(&pid);
            }
        }
    }
}
