//! Applies the plans of the autoscaler to the farm.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use bus::{Bus, Encoding, Subject, decode, encode};
use bytes::Bytes;
use futures::StreamExt as _;
use model::{
    Control, ExecutorControl, ExecutorHeartbeat, ExecutorId, ExecutorStatus, Heartbeat, Millis, ScalePlan,
    ScaledPool, WorkerId, WorkerStatus, WorkspaceState,
};
use tracing::{info, warn};

use super::{Farm, GRACE, stage};
use crate::up::{
    UpError,
    child::Keeper,
    nats,
    scale::{Heard, LOOK, Step},
    services,
};

/// Delay before a retry after an error.
const AGAIN: Duration = Duration::from_secs(1);

/// Latest heartbeats of the processes of this machine, by process id.
#[derive(Default)]
struct Ears {
    host: String,
    processes: HashMap<u32, (Id, Heard)>,
}

/// Id of a process on the bus.
#[derive(Clone)]
enum Id {
    Worker(WorkerId),
    Executor(ExecutorId),
}

impl Farm {
    /// Follows the plans without end.
    pub(in crate::up) async fn scale(&mut self, nats: &str) {
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
        let bus = nats::connect(url, self.patience).await?;
        let mut plans = bus.scale_changes().await?;
        let subscribe = async |subject: Subject| {
            let subscribed = bus.client().subscribe(subject.to_string()).await;
            subscribed.map_err(refused("subscribing to heartbeats"))
        };
        let mut workers = subscribe(Subject::Heartbeat).await?;
        let mut executors = subscribe(Subject::ExecutorHeartbeat).await?;
        let mut reconnects = bus.reconnects();
        let mut ears = Ears::new();
        loop {
            // At the start and after a lost connection, when messages may have been missed.
            for plan in bus.scale_plans().await? {
                self.take(&plan, bus.now());
            }
            loop {
                self.act(&bus, &ears).await;
                let moving = self.pools.iter().any(super::Pool::is_moving);
                tokio::select! {
                    plan = plans.next() => match plan {
                        Some(plan) => self.take(&plan, bus.now()),
                        None => return Ok(()),
                    },
                    Some(message) = workers.next() => ears.hear_worker(&message.payload),
                    Some(message) = executors.next() => ears.hear_executor(&message.payload),
                    () = reconnects.next() => break,
                    () = tokio::time::sleep(LOOK), if moving => {}
                }
            }
        }
    }

    /// Applies a plan, unless it was made for an earlier farm.
    fn take(&mut self, plan: &ScalePlan, now: Millis) {
        if now.since(plan.at_ms) > self.began.elapsed() {
            return;
        }
        if let Some(pool) = self.pools.iter_mut().find(|pool| *pool.name() == plan.pool) {
            pool.want(plan.desired);
        }
    }

    async fn act(&mut self, bus: &Bus, ears: &Ears) {
        let now = Instant::now();
        self.clear();
        let roster = &self.roster;
        let heard = |name: &str| Some(ears.processes.get(&roster.pid(name)?)?.1);
        let mut todo: Vec<(ScaledPool, &'static str, Step)> = Vec::new();
        for pool in &mut self.pools {
            let (name, service) = (pool.name().clone(), pool.service());
            todo.extend(pool.steps(heard, now).into_iter().map(|step| (name.clone(), service, step)));
        }
        for (pool, service, step) in todo {
            self.carry_out(bus, ears, &pool, service, step).await;
        }
        self.list();
    }

    async fn carry_out(
        &mut self,
        bus: &Bus,
        ears: &Ears,
        pool: &ScaledPool,
        service: &'static str,
        step: Step,
    ) {
        let process = |name: &str| ears.processes.get(&self.roster.pid(name)?).map(|(id, _)| id.clone());
        let done = match step {
            Step::Ask => ask(bus, pool).await,
            Step::Start(name) => {
                if let Some(maker) = &self.maker {
                    info!(%pool, name, "starting a process");
                    let spec = maker.spec(&self.folder, &name, service);
                    self.keepers.push(Keeper::start(spec, self.roster.clone()));
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
                self.keepers
                    .iter()
                    .filter(|keeper| keeper.name() == name)
                    .for_each(|keeper| keeper.stop(grace));
                Ok(())
            }
        };
        if let Err(error) = done {
            // Repeated until the heartbeats show the effect.
            warn!(%pool, error = telemetry::error_chain(&error), "cannot send an order to a process");
        }
    }

    /// Removes processes that have exited.
    fn clear(&mut self) {
        for pool in &mut self.pools {
            for name in pool.names() {
                let gone = self.keepers.iter().any(|keeper| keeper.name() == name && keeper.is_gone());
                if gone {
                    self.keepers.retain(|keeper| keeper.name() != name);
                    self.roster.shows_metrics(&name, None);
                    pool.forget(&name);
                }
            }
        }
    }

    /// Publishes the metrics URLs of new processes.
    fn list(&mut self) {
        for pool in &mut self.pools {
            for name in pool.unlisted() {
                if let Some(url) = services::metrics(&self.folder, &name) {
                    self.roster.shows_metrics(&name, Some(url));
                    pool.list(&name);
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
    let asked = bus.client().publish(subject.to_string(), Bytes::new()).await;
    asked.map_err(refused("asking for heartbeats"))
}

/// Drains or resumes a process. One without a heartbeat yet receives the order later.
async fn order(bus: &Bus, process: Option<Id>, drain: bool) -> Result<(), UpError> {
    match process {
        None => Ok(()),
        Some(Id::Worker(worker)) => {
            let order = if drain { Control::Drain } else { Control::Resume };
            let subject = Subject::Control(worker).to_string();
            let sent = bus.client().publish(subject, encode(Encoding::Json, &order)).await;
            sent.map_err(refused("sending an order to a worker"))
        }
        Some(Id::Executor(executor)) => {
            let order = if drain { ExecutorControl::Drain } else { ExecutorControl::Resume };
            Ok(bus.order_executor(&executor, &order).await?)
        }
    }
}

/// Converts an error of the bus.
fn refused<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    what: &'static str,
) -> impl FnOnce(E) -> UpError {
    move |error| UpError::System { what, source: std::io::Error::other(error) }
}

impl Ears {
    fn new() -> Self {
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        Self { host: host.unwrap_or_else(|| "unknown".to_owned()), processes: HashMap::new() }
    }

    fn hear_worker(&mut self, payload: &[u8]) {
        let Ok(said) = decode::<Heartbeat>(Encoding::Json, payload) else { return };
        let busy = said.workspaces.iter().any(|state| matches!(state, WorkspaceState::Busy { .. }));
        let draining = match said.status {
            WorkerStatus::Ready | WorkerStatus::Full => Some(false),
            WorkerStatus::Draining => Some(true),
            WorkerStatus::Gone => None,
        };
        self.hear(&said.host, said.pid, Id::Worker(said.worker), draining, busy);
    }

    fn hear_executor(&mut self, payload: &[u8]) {
        let Ok(said) = decode::<ExecutorHeartbeat>(Encoding::Json, payload) else { return };
        let draining = match said.status {
            ExecutorStatus::Ready | ExecutorStatus::Closed => Some(false),
            ExecutorStatus::Draining => Some(true),
            ExecutorStatus::Gone => None,
        };
        self.hear(&said.host, said.pid, Id::Executor(said.executor), draining, !said.running.is_empty());
    }

    /// Records a heartbeat; `draining` is `None` for a process that has stopped.
    fn hear(&mut self, host: &str, pid: u32, id: Id, draining: Option<bool>, busy: bool) {
        if host != self.host {
            return;
        }
        match draining {
            Some(draining) => {
                let heard = Heard { at: Instant::now(), draining, busy };
                self.processes.insert(pid, (id, heard));
            }
            None => drop(self.processes.remove(&pid)),
        }
    }
}
