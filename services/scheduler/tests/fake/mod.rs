//! Servers, in-process schedulers, and executors that behave as the test prescribes.
#![allow(unreachable_pub, missing_docs, reason = "a part of the test")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test harness fails by panicking"
)]

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use bus::{ActionSubject, Bus, Patience, Stored, Written};
use farm::{SOON, Servers};
use futures::StreamExt as _;
use index::{
    Index,
    actions::{Actions, Queue},
};
use model::{
    ActionKeys, Attempt, ClientTool, Execution, ExecutionId, ExecutionKey, ExecutionOutcome, ExecutionRecord,
    ExecutorId, Millis, Needs, PoolName, RequirementsId, Sequence,
};
use service::Context;
use settings::Settings;
use tokio_util::sync::CancellationToken;

mod executor;

pub use executor::{FakeExecutor, Manner};

const PATIENCE: Duration = Duration::from_secs(10);
const LEASE_SECONDS: u64 = 2;

/// Servers that only this test uses.
pub struct Test {
    pub bus: Bus,
    pub actions: Actions,
    settings: Settings,
    pub servers: Servers,
}

/// A scheduler in its own runtime; dropping the runtime has the effect of killing a process.
pub struct Scheduler {
    runtime: Option<tokio::runtime::Runtime>,
}

impl Scheduler {
    /// Stops it at once, wherever it is.
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
        home: executor.map(|id| format!("home-{id}").parse().unwrap()),
        code: 0,
        message: String::new(),
        missing: Vec::new(),
        exit_code: Some(0),
        result: None,
        server_logs: Vec::new(),
        measured: None,
        interference: None,
    }
}

impl Test {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut Settings)) -> Self {
        let servers = Servers::start().await;
        servers.create_streams().await;
        let mut settings = Settings {
            nats_url: servers.nats_url(),
            redis_url: servers.redis_url(),
            data: servers.folder().join("data"),
            metrics_listen: "127.0.0.1:0".into(),
            lease_ttl_seconds: LEASE_SECONDS,
            offer_timeout_ms: 1000,
            ..Settings::default()
        };
        change(&mut settings);
        let stop = CancellationToken::new();
        let context = Context::connect(settings.service("test"), "test", Patience::Wait, stop).await.unwrap();
        let actions = Index::connect(&settings.redis_url, true).await.unwrap().actions();
        Self { bus: context.bus, actions, settings, servers }
    }

    /// Starts a scheduler and waits until it is ready.
    pub async fn scheduler(&self) -> Scheduler {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let settings = self.settings.clone();
        let (started, ready) = tokio::sync::oneshot::channel();
        runtime.spawn(async move {
            let stop = CancellationToken::new();
            let context = Context::connect(settings.service("scheduler"), "scheduler", Patience::Wait, stop)
                .await
                .unwrap();
            let _ = started.send(());
            scheduler::run(context, settings.scheduler()).await.unwrap();
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
        let now = Millis::of_this_machine();
        let mut execution = Execution {
            id: ExecutionId::generate(),
            group: "g".parse().unwrap(),
            instance: String::new(),
            action: format!("{}/7", "ab".repeat(32)).parse().unwrap(),
            band: model::Priority::Interactive,
            priority: 0,
            requirements: model::Requirements::default(),
            timeout_ms: 60_000,
            image: None,
            do_not_cache: false,
            zone: None,
            caller: String::new(),
            accepted_at_ms: now,
            expires_at_ms: now.after(Duration::from_secs(600)),
            max_attempts: Attempt(3),
            traceparent: None,
            client: ClientTool::default(),
            build: None,
            needs: Needs::default(),
            keys: ActionKeys::default(),
        };
        change(&mut execution);
        let record = ExecutionRecord::accepted(execution);
        let written = self.bus.transition(&record, Sequence(0), PATIENCE).await.unwrap();
        assert!(matches!(written, Written::Won(_)));
        record.execution.key()
    }

    /// Writes an end after the last record of the execution.
    pub async fn finish(&self, key: &ExecutionKey, outcome: ExecutionOutcome) -> Written<ExecutionRecord> {
        let (sequence, record) = self.bus.records().latest(key).await.unwrap().unwrap();
        let ended = record.finished(sequence, outcome, Millis::of_this_machine());
        self.bus.transition(&ended, sequence, PATIENCE).await.unwrap()
    }

    /// Waits until each has its result, as long as results come, and checks in the log that it has only one.
    pub async fn all_finished(&self, keys: &[ExecutionKey]) -> HashMap<ExecutionKey, ExecutionOutcome> {
        let mut follower = bus::Follower::new(
            &self.bus,
            bus::stream::ACTIONS,
            ActionSubject::ALL,
            bus::Start::After(Sequence(0)),
        );
        let mut ends: HashMap<ExecutionKey, ExecutionOutcome> = HashMap::new();
        let mut deadline = Instant::now() + SOON * 2;
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
                    deadline = Instant::now() + SOON * 2;
                }
            }
        }
    }

    /// Waits for the end of one execution on the live subject, as a gateway does.
    pub async fn latest_finished(&self, key: &ExecutionKey) {
        let mut live = self.bus.client().subscribe(ActionSubject::live(key)).await.unwrap();
        self.bus.client().flush().await.unwrap();
        loop {
            let (_, record) = self.bus.records().latest(key).await.unwrap().unwrap();
            if record.outcome().is_some() {
                return;
            }
            live.next().await;
        }
    }

    /// Processor time in seconds that Redis has used.
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
            assert!(Instant::now() < deadline, "the condition is not met in time");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn until_queue(&self, condition: impl Fn(&Queue) -> bool) {
        let deadline = Instant::now() + SOON;
        loop {
            match self
                .actions
                .queue(&RequirementsId::none(), [&pool()], None, Millis::of_this_machine())
                .await
            {
                Ok(queue) if condition(&queue) => return,
                other => assert!(Instant::now() < deadline, "the condition is not met in time: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns when executions with this number of different requirements wait.
    pub async fn until_backlog(&self, different: usize) {
        let deadline = Instant::now() + SOON;
        while self.actions.backlog().await.unwrap().len() != different {
            assert!(Instant::now() < deadline, "the backlog is not as expected in time");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn lease_ended(&self, executor: &ExecutorId) {
        let deadline = Instant::now() + SOON;
        while self.bus.leases().get(executor).await.unwrap().is_some() {
            assert!(Instant::now() < deadline, "the lease of {executor} does not expire");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
