//! A fake executor that behaves as the test prescribes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bus::{Acquired, Bus, FromJson as _, Lease, Message as _, Patience, Renewed, Subject, Written};
use futures::StreamExt as _;
use model::{
    ExecutionKey, ExecutionOutcome, ExecutionRecord, ExecutorControl, ExecutorHeartbeat, ExecutorId,
    ExecutorStatus, Grants, HandOver, Millis, Resources, Room, RoomReport, Sequence, WindowState,
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
    /// Has room, and ignores what it gets.
    Deaf,
    /// Reports that it has no room, and keeps what it has.
    Closed,
    /// Keeps what it has, and reports more room than it is large.
    Lying,
}

struct Inner {
    bus: Bus,
    id: ExecutorId,
    slots: u16,
    custom: Resources,
    properties: BTreeMap<String, Vec<String>>,
    manner: Mutex<Manner>,
    held: Mutex<HashMap<ExecutionKey, (Sequence, ExecutionRecord, Resources)>>,
    history: Mutex<Vec<ExecutionKey>>,
    cancelled: Mutex<Vec<ExecutionKey>>,
    answers: Mutex<Vec<usize>>,
    gone: Mutex<bool>,
    granted: AtomicU64,
    reports: AtomicU64,
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
        Self::start_as(test, id, slots, (custom, BTreeMap::new()), manner).await
    }

    /// Starts an executor of the hardware group `group`.
    pub async fn start_in(test: &Test, id: &str, slots: u16, group: &str, manner: Manner) -> Self {
        let properties = BTreeMap::from([("hwgroup".to_owned(), vec![group.to_owned()])]);
        Self::start_as(test, id, slots, (Resources::default(), properties), manner).await
    }

    async fn start_as(
        test: &Test,
        id: &str,
        slots: u16,
        (custom, properties): (Resources, BTreeMap<String, Vec<String>>),
        manner: Manner,
    ) -> Self {
        // It has a separate connection, so that its subscriptions end with it.
        let bus = Bus::connect(&test.servers.nats_url(), id, Patience::Wait).await.unwrap();
        let inner = Arc::new(Inner {
            bus: bus.clone(),
            id: id.parse().unwrap(),
            slots,
            custom,
            properties,
            manner: Mutex::new(manner),
            held: Mutex::default(),
            history: Mutex::default(),
            cancelled: Mutex::default(),
            answers: Mutex::default(),
            gone: Mutex::new(false),
            granted: AtomicU64::new(0),
            reports: AtomicU64::new(0),
            room: Notify::new(),
        });
        let client = bus.client();
        let granted = client.subscribe(Subject::ExecutorGrant(inner.id.clone()).to_string()).await.unwrap();
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
        let tasks = vec![
            tokio::spawn(inner.clone().serve_grants(granted)),
            tokio::spawn(inner.clone().serve_control(control)),
            tokio::spawn(inner.clone().serve_asked(asked)),
            tokio::spawn(inner.clone().serve_reconnects()),
            tokio::spawn(inner.clone().report()),
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
        self.set_manner(Manner::Closed);
        let claimed = self.inner.held.lock().drain().map(|(key, _)| key).collect();
        let handed = HandOver { executor: self.inner.id.clone(), claimed };
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

    /// Number of claims in each grant.
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
        let room = self.room_left();
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
            executor_type: model::ExecutorType::x86(),
            slots: self.slots,
            properties: self.properties.clone(),
            root_is_input: false,
            capacity: self.capacity(),
            held: used,
            running: held.keys().cloned().collect(),
            room,
            window: WindowState::default(),
            images: Vec::new(),
            image_names: Vec::new(),
            shared_services: Vec::new(),
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
            }
        }
    }

    async fn serve_asked(self: Arc<Self>, mut asked: async_nats::Subscriber) {
        while asked.next().await.is_some() {
            if !*self.gone.lock() {
                self.say(ExecutorStatus::Ready).await;
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

    async fn serve_grants(self: Arc<Self>, mut granted: async_nats::Subscriber) {
        while let Some(message) = granted.next().await {
            let grants = Grants::from_json(&message.payload).unwrap();
            self.receive(grants).await;
        }
    }

    async fn receive(self: &Arc<Self>, grants: Grants) {
        let manner = *self.manner.lock();
        if manner == Manner::Deaf || *self.gone.lock() {
            return;
        }
        self.granted.fetch_max(grants.number, Ordering::Relaxed);
        if grants.claimed.is_empty() {
            self.say(ExecutorStatus::Ready).await;
            return;
        }
        self.answers.lock().push(grants.claimed.len());
        for it in grants.claimed {
            let key = it.record.execution.key();
            let held = (it.sequence, it.record.clone(), it.size);
            if self.held.lock().insert(key.clone(), held).is_none() {
                self.history.lock().push(key);
                if manner == Manner::Finish {
                    tokio::spawn(self.clone().finish_one(it.sequence, it.record));
                }
            }
        }
        // Confirms the claims.
        self.say(ExecutorStatus::Ready).await;
    }

    /// Reports the room whenever it changed.
    async fn report(self: Arc<Self>) {
        loop {
            self.room.notified().await;
            if !*self.gone.lock() {
                let report = RoomReport { executor: self.id.clone(), room: self.room_left() };
                let payload = report.to_json();
                // Without a server the message is lost; a heartbeat follows after the reconnect.
                let _ = self.bus.client().publish(Subject::ExecutorRoom.to_string(), payload).await;
            }
        }
    }

    fn room_left(&self) -> Room {
        let held = self.held.lock();
        let number = self.reports.fetch_add(1, Ordering::Relaxed) + 1;
        let granted = self.granted.load(Ordering::Relaxed);
        let mut room = Room { number, granted, idle: held.is_empty(), ..Room::default() };
        if *self.manner.lock() != Manner::Closed {
            let running = u16::try_from(held.len()).unwrap();
            (room.free, room.starts) = (self.capacity(), self.slots.saturating_sub(running));
            held.values().for_each(|(_, _, size)| room.free.take(size));
        }
        if *self.manner.lock() == Manner::Lying {
            room.free = Resources::new(u64::MAX, u64::MAX);
            (room.starts, room.ahead, room.idle) = (u16::MAX, u16::MAX, true);
        }
        room
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
