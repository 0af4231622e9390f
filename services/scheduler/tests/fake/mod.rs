//! Servers, in-process schedulers, and executors that do as the test says.
#![allow(unreachable_pub, missing_docs, reason = "a part of the test")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test harness fails by panicking"
)]

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bus::{
    Acquired, ActionSubject, Bus, Encoding, Lease, Patience, Renewed, Stored, Subject, Written, decode,
    encode,
};
use farm::{SOON, Servers};
use futures::StreamExt as _;
use index::{
    Index,
    actions::{Actions, Queue},
};
use model::{
    Attempt, ClientTool, Execution, ExecutionId, ExecutionKey, ExecutionOfferReply, ExecutionOffers,
    ExecutionOutcome, ExecutionRecord, ExecutionVerdict, ExecutorControl, ExecutorHeartbeat, ExecutorId,
    ExecutorStatus, Millis, PoolName, Sequence,
};
use service::Context;
use settings::Settings;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(10);
const LEASE_SECONDS: u64 = 2;

/// Servers of the test's own.
pub struct Test {
    pub bus: Bus,
    pub actions: Actions,
    settings: Settings,
    pub servers: Servers,
}

/// A scheduler in a runtime of its own, which is dropped as a kill drops a process.
pub struct Scheduler {
    runtime: Option<tokio::runtime::Runtime>,
}

impl Scheduler {
    /// Nothing more is done, wherever it is.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.end();
    }
}

pub fn pool() -> PoolName {
    "default".parse().unwrap()
}

pub fn outcome(executor: Option<&str>) -> ExecutionOutcome {
    ExecutionOutcome {
        executor: executor.map(|id| id.parse().unwrap()),
        code: 0,
        message: String::new(),
        missing: Vec::new(),
        exit_code: Some(0),
        result: None,
        server_logs: Vec::new(),
    }
}

impl Test {
    pub async fn start() -> Self {
        let servers = Servers::start().await;
        let settings = Settings {
            nats_url: servers.nats_url(),
            redis_url: servers.redis_url(),
            data: servers.folder().join("data"),
            metrics_listen: "127.0.0.1:0".into(),
            lease_ttl_seconds: LEASE_SECONDS,
            offer_timeout_ms: 1000,
            ..Settings::default()
        };
        let stop = CancellationToken::new();
        let context = Context::connect(settings.clone(), "test", Patience::Wait, stop).await.unwrap();
        let actions = Index::connect(&settings.redis_url, true).await.unwrap().actions();
        Self { bus: context.bus, actions, settings, servers }
    }

    /// A scheduler that is ready.
    pub async fn scheduler(&self) -> Scheduler {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let settings = self.settings.clone();
        let (started, ready) = tokio::sync::oneshot::channel();
        runtime.spawn(async move {
            let stop = CancellationToken::new();
            let context = Context::connect(settings, "scheduler", Patience::Wait, stop).await.unwrap();
            let _ = started.send(());
            scheduler::run(context).await.unwrap();
        });
        ready.await.unwrap();
        self.until_queue(|queue| queue.ready).await;
        Scheduler { runtime: Some(runtime) }
    }

    pub async fn accept(&self, count: usize) -> Vec<ExecutionKey> {
        let accepted = (0..count).map(|_| self.accept_with(|_| {}));
        futures::stream::iter(accepted).buffered(64).collect().await
    }

    pub async fn accept_with(&self, change: impl FnOnce(&mut Execution)) -> ExecutionKey {
        let now = Millis::now();
        let mut execution = Execution {
            id: ExecutionId::generate(),
            group: "g".parse().unwrap(),
            instance: String::new(),
            action: format!("{}/7", "ab".repeat(32)).parse().unwrap(),
            priority: 0,
            pool: pool(),
            timeout_ms: 60_000,
            do_not_cache: false,
            accepted_at_ms: now,
            expires_at_ms: now.after(Duration::from_secs(600)),
            max_attempts: Attempt(3),
            traceparent: None,
            client: ClientTool::default(),
            build: None,
        };
        change(&mut execution);
        let record = ExecutionRecord::accepted(execution);
        let written = self.bus.transition(&record, Sequence(0), PATIENCE).await.unwrap();
        assert!(matches!(written, Written::Won(_)));
        record.execution.key()
    }

    /// Writes an end behind whatever stands there.
    pub async fn finish(&self, key: &ExecutionKey, outcome: ExecutionOutcome) -> Written<ExecutionRecord> {
        let (sequence, record) = self.bus.latest_execution(key).await.unwrap().unwrap();
        let ended = record.finished(sequence, outcome, Millis::now());
        self.bus.transition(&ended, sequence, PATIENCE).await.unwrap()
    }

    /// Waits until each has its result, and checks in the log that it has one only.
    pub async fn all_finished(&self, keys: &[ExecutionKey]) -> HashMap<ExecutionKey, ExecutionOutcome> {
        let mut follower = bus::Follower::new(
            &self.bus,
            bus::stream::ACTIONS,
            ActionSubject::ALL,
            bus::Start::After(Sequence(0)),
        );
        let mut ends: HashMap<ExecutionKey, ExecutionOutcome> = HashMap::new();
        let deadline = Instant::now() + SOON * 2;
        loop {
            let missing = keys.iter().filter(|key| !ends.contains_key(key)).count();
            if missing == 0 {
                return ends;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let next = tokio::time::timeout(left, follower.next(1000)).await;
            for stored in next.unwrap_or_else(|_| panic!("{missing} of {} have no result", keys.len())) {
                let record = Stored::execution(&stored).unwrap();
                if let Some(outcome) = record.outcome() {
                    let again = ends.insert(record.execution.key(), outcome.clone());
                    assert!(again.is_none(), "two results: {record:?}");
                }
            }
        }
    }

    /// Waits for the end of one by the live subject, as a gateway does.
    pub async fn latest_finished(&self, key: &ExecutionKey) {
        let mut live = self.bus.client().subscribe(ActionSubject::live(key)).await.unwrap();
        self.bus.client().flush().await.unwrap();
        loop {
            let (_, record) = self.bus.latest_execution(key).await.unwrap().unwrap();
            if record.outcome().is_some() {
                return;
            }
            live.next().await;
        }
    }

    /// Processor time that Redis has used.
    pub fn redis_seconds(&self) -> f64 {
        let pid = self.servers.redis_pid().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
        let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
        (ticks(11) + ticks(12)) / 100.0
    }

    pub async fn until(&self, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + SOON;
        while !condition() {
            assert!(Instant::now() < deadline, "it does not come to that");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn until_queue(&self, condition: impl Fn(&Queue) -> bool) {
        let deadline = Instant::now() + SOON;
        loop {
            match self.actions.queue(&pool(), None, Millis::now()).await {
                Ok(queue) if condition(&queue) => return,
                other => assert!(Instant::now() < deadline, "it does not come to that: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn lease_ended(&self, executor: &ExecutorId) {
        let deadline = Instant::now() + SOON;
        while self.bus.lease(executor).await.unwrap().is_some() {
            assert!(Instant::now() < deadline, "the lease of {executor} does not end");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// What an executor does with an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Takes it and writes its result.
    Finish,
    /// Takes it and keeps it in hand.
    Hold,
    /// Says that it has no room, though its heartbeats say that it has.
    Busy,
    /// Says nothing.
    Deaf,
}

struct Inner {
    bus: Bus,
    id: ExecutorId,
    slots: u16,
    manner: Mutex<Manner>,
    held: Mutex<HashMap<ExecutionKey, (Sequence, ExecutionRecord)>>,
    history: Mutex<Vec<ExecutionKey>>,
    cancelled: Mutex<Vec<ExecutionKey>>,
    refused: AtomicUsize,
    gone: Mutex<bool>,
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
        // A connection of its own, so that its subscriptions end with it.
        let bus = Bus::connect(&test.servers.nats_url(), id, Patience::Wait).await.unwrap();
        let inner = Arc::new(Inner {
            bus: bus.clone(),
            id: id.parse().unwrap(),
            slots,
            manner: Mutex::new(manner),
            held: Mutex::default(),
            history: Mutex::default(),
            cancelled: Mutex::default(),
            refused: AtomicUsize::default(),
            gone: Mutex::new(false),
        });
        let client = bus.client();
        let offers = client.subscribe(Subject::ExecutorOffer(inner.id.clone()).to_string()).await.unwrap();
        let control = client.subscribe(Subject::ExecutorControl(inner.id.clone()).to_string()).await.unwrap();
        let asked = client.subscribe(Subject::ExecutorAnnounce.to_string()).await.unwrap();
        let holder =
            ExecutorHeartbeat { ttl_ms: LEASE_SECONDS * 1000, ..inner.content(ExecutorStatus::Ready) };
        let Acquired::Held(lease) = bus.acquire_lease(&inner.id, holder, PATIENCE).await.unwrap() else {
            panic!("the lease is taken")
        };
        let lease = Arc::new(tokio::sync::Mutex::new(lease));
        client.flush().await.unwrap();
        inner.say(ExecutorStatus::Ready).await;
        let tasks = vec![
            tokio::spawn(inner.clone().serve_offers(offers)),
            tokio::spawn(inner.clone().serve_control(control)),
            tokio::spawn(inner.clone().serve_asked(asked)),
            tokio::spawn(inner.clone().serve_reconnects()),
            tokio::spawn(renew(bus, lease.clone())),
        ];
        Self { inner, lease, tasks }
    }

    pub fn id(&self) -> &ExecutorId {
        &self.inner.id
    }

    /// Dies: says nothing more, and its lease runs out.
    pub fn kill(&self) {
        *self.inner.gone.lock().unwrap() = true;
        self.tasks.iter().for_each(JoinHandle::abort);
    }

    /// Dies, and whoever comes after it gives its lease back.
    pub async fn release(&self) {
        self.kill();
        let lease = self.lease.lock().await;
        self.inner.bus.release_lease(&lease).await.unwrap();
    }

    pub fn set_manner(&self, manner: Manner) {
        *self.inner.manner.lock().unwrap() = manner;
    }

    pub async fn heartbeat(&self, status: ExecutorStatus) {
        if status == ExecutorStatus::Gone {
            *self.inner.gone.lock().unwrap() = true;
        }
        self.inner.say(status).await;
    }

    pub fn held(&self) -> usize {
        self.inner.held.lock().unwrap().len()
    }

    pub fn holding(&self) -> Vec<(Sequence, ExecutionRecord)> {
        self.inner.held.lock().unwrap().values().cloned().collect()
    }

    pub async fn finish_held(&self) {
        for (sequence, record) in self.holding() {
            self.inner.finish(sequence, record).await;
        }
    }

    pub fn taken(&self) -> usize {
        self.inner.history.lock().unwrap().len()
    }

    pub fn history(&self) -> Vec<ExecutionKey> {
        self.inner.history.lock().unwrap().clone()
    }

    pub fn refused(&self) -> usize {
        self.inner.refused.load(Ordering::Relaxed)
    }

    pub fn cancelled(&self) -> Vec<ExecutionKey> {
        self.inner.cancelled.lock().unwrap().clone()
    }
}

async fn renew(bus: Bus, lease: Arc<tokio::sync::Mutex<Lease<ExecutorId>>>) {
    loop {
        tokio::time::sleep(Duration::from_secs(LEASE_SECONDS) / 3).await;
        let mut lease = lease.lock().await;
        match bus.renew_lease(&mut lease, PATIENCE).await {
            Ok(Renewed::Lost) => return,
            Ok(Renewed::Held) | Err(_) => {}
        }
    }
}

impl Inner {
    fn content(&self, status: ExecutorStatus) -> ExecutorHeartbeat {
        ExecutorHeartbeat {
            executor: self.id.clone(),
            pool: pool(),
            host: "machine".into(),
            pid: 1,
            started_at_ms: Millis(1),
            status,
            slots: self.slots,
            running: self.held.lock().unwrap().keys().cloned().collect(),
            ttl_ms: 30_000,
        }
    }

    async fn say(&self, status: ExecutorStatus) {
        let payload = encode(Encoding::Json, &self.content(status));
        self.bus.client().publish(Subject::ExecutorHeartbeat.to_string(), payload).await.unwrap();
        // Without a server there is nobody to hear it; it is said again when there is.
        let _ = self.bus.client().flush().await;
    }

    /// Says what it has when the connection is back, as every executor does: a question may have come before.
    async fn serve_reconnects(self: Arc<Self>) {
        let mut reconnects = self.bus.reconnects();
        loop {
            reconnects.next().await;
            if !*self.gone.lock().unwrap() {
                self.say(ExecutorStatus::Ready).await;
            }
        }
    }

    async fn serve_asked(self: Arc<Self>, mut asked: async_nats::Subscriber) {
        while asked.next().await.is_some() {
            if !*self.gone.lock().unwrap() {
                self.say(ExecutorStatus::Ready).await;
            }
        }
    }

    async fn serve_control(self: Arc<Self>, mut orders: async_nats::Subscriber) {
        while let Some(message) = orders.next().await {
            if let ExecutorControl::Cancel { execution } = decode(Encoding::Json, &message.payload).unwrap() {
                self.cancelled.lock().unwrap().push(execution);
            }
        }
    }

    async fn serve_offers(self: Arc<Self>, mut offers: async_nats::Subscriber) {
        while let Some(message) = offers.next().await {
            let offers: ExecutionOffers = decode(Encoding::Json, &message.payload).unwrap();
            let manner = *self.manner.lock().unwrap();
            let count = offers.offers.len();
            let verdict = match manner {
                Manner::Finish | Manner::Hold => ExecutionVerdict::Taken,
                Manner::Busy | Manner::Deaf => {
                    self.refused.fetch_add(count, Ordering::Relaxed);
                    ExecutionVerdict::Busy
                }
            };
            if manner == Manner::Deaf {
                continue;
            }
            let mut fresh = Vec::new();
            if verdict == ExecutionVerdict::Taken {
                for offer in offers.offers {
                    let key = offer.record.execution.key();
                    let held = (offer.sequence, offer.record);
                    if self.held.lock().unwrap().insert(key.clone(), held.clone()).is_none() {
                        self.history.lock().unwrap().push(key);
                        fresh.push(held);
                    }
                }
            }
            let reply = ExecutionOfferReply { verdicts: vec![verdict; count] };
            let to = message.reply.unwrap();
            self.bus.client().publish(to, encode(Encoding::Json, &reply)).await.unwrap();
            if manner == Manner::Finish {
                for (sequence, record) in fresh {
                    tokio::spawn(self.clone().finish_one(sequence, record));
                }
            }
        }
    }

    async fn finish_one(self: Arc<Self>, sequence: Sequence, record: ExecutionRecord) {
        self.finish(sequence, record).await;
    }

    /// Writes the result, behind whatever was written meanwhile.
    async fn finish(&self, mut sequence: Sequence, mut record: ExecutionRecord) {
        let key = record.execution.key();
        loop {
            let ended = record.finished(sequence, outcome(Some(self.id.as_str())), Millis::now());
            match self.bus.transition(&ended, sequence, PATIENCE).await {
                Ok(Written::Won(_) | Written::Lost(None)) => break,
                Ok(Written::Lost(Some(last))) if last.1.outcome().is_some() => break,
                Ok(Written::Lost(Some(last))) => (sequence, record) = *last,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        self.held.lock().unwrap().remove(&key);
    }
}
