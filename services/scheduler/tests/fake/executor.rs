//! A fake executor that behaves as the test prescribes.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bus::{Acquired, Bus, FromJson as _, Lease, Message as _, Patience, Renewed, Subject, Written};
use futures::StreamExt as _;
use model::{
    ClaimReply, ClaimRequest, ExecutionKey, ExecutionOutcome, ExecutionRecord, ExecutorControl,
    ExecutorHeartbeat, ExecutorId, ExecutorStatus, HandOver, Millis, Reservations, Resources, Sequence,
    WindowState,
};
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinHandle};

use super::{LEASE_SECONDS, PATIENCE, Test, outcome, pool};

/// How an executor reacts when something waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Claims it and writes its result.
    Finish,
    /// Claims it and keeps it.
    Hold,
    /// Receives the reservation, and does not ask.
    Deaf,
}

struct Inner {
    bus: Bus,
    id: ExecutorId,
    slots: u16,
    custom: Resources,
    manner: Mutex<Manner>,
    held: Mutex<HashMap<ExecutionKey, (Sequence, ExecutionRecord, Resources)>>,
    history: Mutex<Vec<ExecutionKey>>,
    cancelled: Mutex<Vec<ExecutionKey>>,
    reserved: Mutex<Vec<ExecutionKey>>,
    trimmed: Mutex<Vec<ExecutionKey>>,
    answers: Mutex<Vec<usize>>,
    gone: Mutex<bool>,
    room: Notify,
}

pub struct FakeExecutor {
    inner: Arc<Inner>,
    lease: Arc<tokio::sync::Mutex<Lease<ExecutorId>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for FakeExecutor {
    fn drop(&mut self) {
        self.kill();
    }
}

impl FakeExecutor {
    pub async fn start(test: &Test, id: &str, slots: u16, manner: Manner) -> Self {
        Self::start_with(test, id, slots, Resources::default(), manner).await
    }

    /// Starts an executor that also has `custom` resources.
    pub async fn start_with(test: &Test, id: &str, slots: u16, custom: Resources, manner: Manner) -> Self {
        // It has a separate connection, so that its subscriptions end with it.
        let bus = Bus::connect(&test.servers.nats_url(), id, Patience::Wait).await.unwrap();
        let inner = Arc::new(Inner {
            bus: bus.clone(),
            id: id.parse().unwrap(),
            slots,
            custom,
            manner: Mutex::new(manner),
            held: Mutex::default(),
            history: Mutex::default(),
            cancelled: Mutex::default(),
            reserved: Mutex::default(),
            trimmed: Mutex::default(),
            answers: Mutex::default(),
            gone: Mutex::new(false),
            room: Notify::new(),
        });
        let client = bus.client();
        let told = client.subscribe(Subject::ExecutorReserve(inner.id.clone()).to_string()).await.unwrap();
        let control = client.subscribe(Subject::ExecutorControl(inner.id.clone()).to_string()).await.unwrap();
        let asked = client.subscribe(Subject::ExecutorAnnounce.to_string()).await.unwrap();
        let holder =
            ExecutorHeartbeat { ttl_ms: LEASE_SECONDS * 1000, ..inner.content(ExecutorStatus::Ready) };
        let Acquired::Held(lease) = bus.leases().acquire(&inner.id, holder, PATIENCE).await.unwrap() else {
            panic!("the lease is already held")
        };
        let lease = Arc::new(tokio::sync::Mutex::new(lease));
        client.flush().await.unwrap();
        inner.say(ExecutorStatus::Ready).await;
        inner.room.notify_one();
        let tasks = vec![
            tokio::spawn(inner.clone().serve_reservations(told)),
            tokio::spawn(inner.clone().serve_control(control)),
            tokio::spawn(inner.clone().serve_asked(asked)),
            tokio::spawn(inner.clone().serve_reconnects()),
            tokio::spawn(inner.clone().claim()),
            tokio::spawn(renew(bus, lease.clone())),
        ];
        Self { inner, lease, tasks }
    }

    pub fn id(&self) -> &ExecutorId {
        &self.inner.id
    }

    /// Kills it: it sends nothing more, and its lease expires.
    pub fn kill(&self) {
        *self.inner.gone.lock() = true;
        self.tasks.iter().for_each(JoinHandle::abort);
    }

    /// Kills it and deletes its lease, as its successor would.
    pub async fn release(&self) {
        self.kill();
        let lease = self.lease.lock().await;
        self.inner.bus.leases().release(&lease).await.unwrap();
    }

    pub fn set_manner(&self, manner: Manner) {
        *self.inner.manner.lock() = manner;
        self.inner.room.notify_one();
    }

    pub async fn heartbeat(&self, status: ExecutorStatus) {
        if status == ExecutorStatus::Gone {
            *self.inner.gone.lock() = true;
        }
        self.inner.say(status).await;
    }

    /// Returns the executions it holds in one message, and claims nothing more.
    pub async fn hand_over(&self) {
        self.set_manner(Manner::Deaf);
        let claimed = self.inner.held.lock().drain().map(|(key, _)| key).collect();
        let handed =
            HandOver { executor: self.inner.id.clone(), pool: pool(), claimed, reserved: Vec::new() };
        let payload = handed.to_json();
        self.inner.bus.client().publish(Subject::ExecutorHandOver.to_string(), payload).await.unwrap();
    }

    pub fn held(&self) -> usize {
        self.inner.held.lock().len()
    }

    pub fn holding(&self) -> Vec<(Sequence, ExecutionRecord)> {
        let held = self.inner.held.lock();
        held.values().map(|(sequence, record, _)| (*sequence, record.clone())).collect()
    }

    pub async fn finish_held(&self) {
        for (sequence, record) in self.holding() {
            self.inner.finish(sequence, record, outcome(Some(self.inner.id.as_str()))).await;
        }
    }

    /// Ends the executions it holds with this outcome.
    pub async fn end_held(&self, end: ExecutionOutcome) {
        for (sequence, record) in self.holding() {
            self.inner.finish(sequence, record, end.clone()).await;
        }
    }

    pub fn taken(&self) -> usize {
        self.inner.history.lock().len()
    }

    pub fn history(&self) -> Vec<ExecutionKey> {
        self.inner.history.lock().clone()
    }

    /// Executions it was notified of.
    pub fn reserved(&self) -> Vec<ExecutionKey> {
        self.inner.reserved.lock().clone()
    }

    /// Executions it was told to forget.
    pub fn trimmed(&self) -> Vec<ExecutionKey> {
        self.inner.trimmed.lock().clone()
    }

    /// Number of claims in each answer.
    pub fn answers(&self) -> Vec<usize> {
        self.inner.answers.lock().clone()
    }

    pub fn cancelled(&self) -> Vec<ExecutionKey> {
        self.inner.cancelled.lock().clone()
    }
}

async fn renew(bus: Bus, lease: Arc<tokio::sync::Mutex<Lease<ExecutorId>>>) {
    loop {
        tokio::time::sleep(Duration::from_secs(LEASE_SECONDS) / 3).await;
        let mut lease = lease.lock().await;
        match bus.leases().renew(&mut lease, PATIENCE).await {
            Ok(Renewed::Lost) => return,
            Ok(Renewed::Held) | Err(_) => {}
        }
    }
}

impl Inner {
    fn capacity(&self) -> Resources {
        let mut all = Resources::new(u64::from(self.slots) * 1000, u64::from(self.slots) * 1_000_000_000);
        all.add(&self.custom);
        all
    }

    fn content(&self, status: ExecutorStatus) -> ExecutorHeartbeat {
        let held = self.held.lock();
        let mut used = Resources::default();
        held.values().for_each(|(_, _, size)| used.add(size));
        ExecutorHeartbeat {
            executor: self.id.clone(),
            pool: pool(),
            host: "machine".into(),
            home: format!("home-{}", self.id).parse().unwrap(),
            pid: 1,
            started_at_ms: Millis(1),
            status,
            slots: self.slots,
            capacity: self.capacity(),
            held: used,
            running: held.keys().cloned().collect(),
            queued: 0,
            window: WindowState::default(),
            ttl_ms: 30_000,
            clock_skew_ms: None,
        }
    }

    async fn say(&self, status: ExecutorStatus) {
        let payload = self.content(status).to_json();
        self.bus.client().publish(Subject::ExecutorHeartbeat.to_string(), payload).await.unwrap();
        // Without a server the message is lost; it is sent again after the reconnect.
        let _ = self.bus.client().flush().await;
    }

    /// Sends a heartbeat when the connection is back, as every executor does: it may have missed a request for one.
    async fn serve_reconnects(self: Arc<Self>) {
        let mut reconnects = self.bus.reconnects();
        loop {
            reconnects.next().await;
            if !*self.gone.lock() {
                self.say(ExecutorStatus::Ready).await;
                self.room.notify_one();
            }
        }
    }

    async fn serve_asked(self: Arc<Self>, mut asked: async_nats::Subscriber) {
        while asked.next().await.is_some() {
            if !*self.gone.lock() {
                self.say(ExecutorStatus::Ready).await;
                self.room.notify_one();
            }
        }
    }

    async fn serve_control(self: Arc<Self>, mut orders: async_nats::Subscriber) {
        while let Some(message) = orders.next().await {
            if let ExecutorControl::Cancel { execution } =
                ExecutorControl::from_json(&message.payload).unwrap()
            {
                self.cancelled.lock().push(execution);
            }
        }
    }

    async fn serve_reservations(self: Arc<Self>, mut told: async_nats::Subscriber) {
        while let Some(message) = told.next().await {
            let told = Reservations::from_json(&message.payload).unwrap();
            // Other executors where the execution is warm may ask earlier.
            let after = told.reserve.iter().map(|it| it.after_ms).min().unwrap_or_default();
            self.reserved.lock().extend(told.reserve.into_iter().map(|it| it.execution));
            self.trimmed.lock().extend(told.trim);
            let this = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(after)).await;
                this.room.notify_one();
            });
        }
    }

    async fn claim(self: Arc<Self>) {
        loop {
            self.room.notified().await;
            while self.ask().await {}
        }
    }

    /// Asks once; returns whether to ask again immediately.
    async fn ask(self: &Arc<Self>) -> bool {
        let manner = *self.manner.lock();
        let content = self.content(ExecutorStatus::Ready);
        let starts = usize::from(self.slots).saturating_sub(content.running.len());
        if manner == Manner::Deaf || starts == 0 || *self.gone.lock() {
            return false;
        }
        let mut free = content.capacity.clone();
        free.take(&content.held);
        let request = ClaimRequest {
            executor: self.id.clone(),
            pool: pool(),
            capacity: content.capacity,
            free,
            starts: u16::try_from(starts).unwrap(),
            ahead: 0,
            idle: content.running.is_empty(),
            reserved: Vec::new(),
        };
        let payload = request.to_json();
        let request = async_nats::Request::new().payload(payload).timeout(Some(ClaimRequest::PATIENCE));
        let answer = self.bus.client().send_request(Subject::ExecutorClaim.to_string(), request).await;
        let Ok(answer) = answer else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            self.say(ExecutorStatus::Ready).await;
            return true;
        };
        let reply = ClaimReply::from_json(&answer.payload).unwrap();
        self.answers.lock().push(reply.claimed.len());
        for it in reply.claimed {
            let key = it.record.execution.key();
            let held = (it.sequence, it.record.clone(), it.size);
            if self.held.lock().insert(key.clone(), held).is_none() {
                self.history.lock().push(key);
                if manner == Manner::Finish {
                    tokio::spawn(self.clone().finish_one(it.sequence, it.record));
                }
            }
        }
        false
    }

    async fn finish_one(self: Arc<Self>, sequence: Sequence, record: ExecutionRecord) {
        let end = outcome(Some(self.id.as_str()));
        self.finish(sequence, record, end).await;
    }

    /// Writes the result, after any record that was written in between.
    async fn finish(&self, mut sequence: Sequence, mut record: ExecutionRecord, end: ExecutionOutcome) {
        let key = record.execution.key();
        loop {
            let end = policy::actions::CopyEnd::Outcome(end.clone());
            let next =
                policy::actions::after_copy(&record, sequence, &self.id, end, Millis::of_this_machine());
            let Some(next) = next else { break };
            match self.bus.transition(next.record(), sequence, PATIENCE).await {
                Ok(Written::Won(_) | Written::Lost(None)) => break,
                Ok(Written::Lost(Some(last))) => (sequence, record) = *last,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        self.held.lock().remove(&key);
        self.room.notify_one();
    }
}
