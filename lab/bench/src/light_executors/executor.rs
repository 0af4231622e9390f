//! One light executor: the executors' side of the protocol, without processes and files.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bus::{Acquired, Lease, Renewed, Written, millis};
use model::{
    Claimed, ExecutionOutcome, ExecutorControl, ExecutorHeartbeat, ExecutorHome, ExecutorId, ExecutorStatus,
    Grants, Millis, Pool, RoomReport, WindowState,
};
use parking_lot::Mutex;
use policy::actions::{CopyEnd, after_copy};
use service::{Context, HeartbeatSource, Subscription, heartbeat_ttl_ms, send_heartbeat, serve_heartbeats};
use tokio::sync::Notify;

use super::{common::Common, held::Held};
use crate::error::BenchError;

/// Time limit of one write, as that of real executors.
const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(200);

/// One executor, which runs as a few futures of this process.
pub(super) struct LightExecutor {
    context: Context,
    common: Arc<Common>,
    pool: Arc<Pool>,
    id: ExecutorId,
    home: ExecutorHome,
    started_at: Millis,
    held: Mutex<Held>,
    /// Notified when a heartbeat must be sent now.
    outdated: Notify,
    /// Whether a heartbeat that confirms grants will be sent.
    confirming: AtomicBool,
}

impl HeartbeatSource for LightExecutor {
    type Heartbeat = ExecutorHeartbeat;

    fn context(&self) -> &Context {
        &self.context
    }

    fn interval(&self) -> Duration {
        self.common.settings.heartbeat
    }

    fn outdated(&self) -> &Notify {
        &self.outdated
    }

    fn heartbeat(&self) -> ExecutorHeartbeat {
        let mut held = self.held.lock();
        let Common { settings, host, .. } = &*self.common;
        let pool = &*self.pool;
        ExecutorHeartbeat {
            executor: self.id.clone(),
            pool: pool.name.clone(),
            home: self.home.clone(),
            host: host.clone(),
            pid: std::process::id(),
            started_at_ms: self.started_at,
            status: ExecutorStatus::Ready,
            executor_type: pool.executor_type.clone(),
            slots: settings.slots,
            properties: pool.properties.clone(),
            root_is_input: pool.root_is_input,
            capacity: pool.capacity.clone(),
            held: held.used().clone(),
            running: held.keys(),
            room: held.room(self.common.is_open()),
            window: WindowState::default(),
            images: Vec::new(),
            image_names: Vec::new(),
            shared_services: Vec::new(),
            ttl_ms: heartbeat_ttl_ms(settings.heartbeat),
            clock_skew_ms: self.context.bus.clock().skew(),
        }
    }

    fn final_heartbeat(&self) -> ExecutorHeartbeat {
        ExecutorHeartbeat { status: ExecutorStatus::Gone, ..self.heartbeat() }
    }
}

impl LightExecutor {
    /// Executor number `number` of `pool`, which sends over the connection of `context`.
    pub(super) fn new(
        context: Context,
        common: Arc<Common>,
        pool: Arc<Pool>,
        number: u32,
    ) -> Result<Self, BenchError> {
        let named = |error: model::ParseIdError| BenchError::new("naming an executor", &error);
        let held = Held::new(common.settings.slots, pool.capacity.clone());
        Ok(Self {
            id: format!("executor-{number:08}").parse().map_err(named)?,
            home: format!("home-{number:08}").parse().map_err(named)?,
            started_at: context.bus.now(),
            held: Mutex::new(held),
            outdated: Notify::new(),
            confirming: AtomicBool::new(false),
            context,
            common,
            pool,
        })
    }

    /// Acquires the lease, then runs what is granted. Returns only if it fails.
    pub(super) async fn serve(self: Arc<Self>) -> Result<(), BenchError> {
        let holder = self.holder();
        let acquired = self.context.bus.leases().acquire(&self.id, holder, PATIENCE).await?;
        let Acquired::Held(lease) = acquired else {
            return Err(BenchError::plain(format!("the lease of {} is already held", self.id)));
        };
        let failed = |error: service::ServiceError| BenchError::new("simulating an executor", &error);
        let granted = Subscription::<Grants>::new(&self.context.bus, &self.id).await.map_err(failed)?;
        let orders =
            Subscription::<ExecutorControl>::new(&self.context.bus, &self.id).await.map_err(failed)?;
        let heartbeats = async { serve_heartbeats(self.clone()).await.map_err(failed) };
        let grants = async { self.serve_grants(granted).await.map_err(failed) };
        let control = async { self.serve_control(orders).await.map_err(failed) };
        tokio::try_join!(heartbeats, grants, control, self.keep(lease)).map(drop)
    }

    /// Content of its lease: the heartbeat without the running actions, as that of real executors.
    fn holder(&self) -> ExecutorHeartbeat {
        let ttl_ms = millis(self.common.settings.lease_ttl);
        ExecutorHeartbeat { running: Vec::new(), ttl_ms, ..self.heartbeat() }
    }

    async fn keep(&self, mut lease: Lease<ExecutorId>) -> Result<(), BenchError> {
        loop {
            tokio::time::sleep(self.common.settings.lease_ttl / 3).await;
            lease.holder = self.holder();
            if self.context.bus.leases().renew(&mut lease, PATIENCE).await? == Renewed::Lost {
                return Err(BenchError::plain(format!("the lease of {} was lost", self.id)));
            }
        }
    }

    async fn serve_grants(
        self: &Arc<Self>,
        mut granted: Subscription<Grants>,
    ) -> Result<(), service::ServiceError> {
        loop {
            let grants = granted.next().await?.content;
            self.receive(grants).await;
        }
    }

    /// Counts orders to cancel an action. It runs no process, so it has nothing to kill.
    async fn serve_control(
        &self,
        mut orders: Subscription<ExecutorControl>,
    ) -> Result<(), service::ServiceError> {
        loop {
            match orders.next().await?.content {
                ExecutorControl::Cancel { .. } => self.common.ledger.cancelled(),
                ExecutorControl::Drain | ExecutorControl::Resume => {}
            }
        }
    }

    async fn receive(self: &Arc<Self>, grants: Grants) {
        let number = grants.number;
        if grants.claimed.is_empty() {
            // A scheduler does not know the room, and this executor may have missed grants.
            self.held.lock().note_granted(number);
            self.common.ledger.asked();
            send_heartbeat(&**self).await;
            return;
        }
        self.common.ledger.granted(grants.claimed.iter().map(|claimed| claimed.record.execution.id));
        let started = self.held.lock().accept(number, grants.claimed);
        self.common.ledger.beyond(started.beyond);
        self.confirm_later();
        for claimed in started.begun {
            tokio::spawn(self.clone().run(claimed));
        }
    }

    /// Sends a heartbeat soon, which confirms the actions that are held then, as real executors do.
    fn confirm_later(self: &Arc<Self>) {
        if self.confirming.swap(true, Ordering::Relaxed) {
            return;
        }
        let executor = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Grants::CONFIRMED_AFTER).await;
            executor.confirming.store(false, Ordering::Relaxed);
            if !executor.held.lock().is_empty() {
                executor.outdated.notify_one();
            }
        });
    }

    async fn run(self: Arc<Self>, claimed: Claimed) {
        let key = claimed.record.execution.key();
        let run = self.common.run.of(&key.id);
        if !run.is_zero() {
            tokio::time::sleep(run).await;
        }
        self.held.lock().leave_slot(&key);
        let is_reported = tokio::select! {
            is_reported = self.finish(claimed) => is_reported,
            () = self.context.stop.cancelled() => return,
        };
        if !is_reported {
            self.report_room().await;
        }
        self.held.lock().release(&key);
        self.common.ledger.finished(&key.id);
    }

    fn room_report(&self) -> RoomReport {
        let room = self.held.lock().room(self.common.is_open());
        RoomReport { executor: self.id.clone(), room }
    }

    /// Reports the room in a message of its own.
    pub(super) async fn report_room(&self) {
        self.context.bus.send_or_log(&(), &self.room_report()).await;
    }

    /// Writes the result after the claimed record or its successor, in a message that also reports the room. Returns
    /// whether it was written.
    async fn finish(&self, claimed: Claimed) -> bool {
        let mut last = (claimed.sequence, claimed.record);
        loop {
            let (sequence, record) = &last;
            let (bus, end) = (&self.context.bus, CopyEnd::Outcome(self.outcome()));
            let Some(after) = after_copy(record, *sequence, &self.id, end, bus.now()) else { return false };
            let room = self.room_report();
            match bus.transition_with_room(after.record(), *sequence, &room, PATIENCE).await {
                Ok(Written::Won(_)) => return true,
                Ok(Written::Lost(Some(found))) => last = *found,
                Ok(Written::Lost(None)) => return false,
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    fn outcome(&self) -> ExecutionOutcome {
        ExecutionOutcome {
            executor: Some(self.id.clone()),
            home: Some(self.home.clone()),
            exit_code: Some(0),
            ..ExecutionOutcome::without_run(0, String::new())
        }
    }
}
