//! The pools and live executors of the farm, read from the bus and cached briefly. Also why an execution waits: from
//! the index if available, otherwise from the cached state.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bus::{Bus, BusError, Subject};
use index::actions::{Actions, Queue};
use invariant::Present as _;
use model::{
    ExecutionKey, ExecutionPhase, ExecutionRecord, ExecutorHeartbeat, ExecutorId, ExecutorStatus, Needs,
    Pool, PoolName, Urgency,
};
use parking_lot::Mutex;
use policy::actions::{AdmitError, admit};
use reapi::status;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{RETRY, faults};

/// Age at which the cached state is refreshed in the background, while requests are still answered from it.
const AGE: Duration = Duration::from_secs(2);
/// Maximum age of the cached state that requests are answered from.
const AGE_MAX: Duration = Duration::from_secs(5);
/// Maximum age of the state that a refusal is based on, as a pool may have been registered since.
const AGE_OF_REFUSAL: Duration = Duration::from_millis(200);
/// Time limit for an answer of Redis.
const INDEX_PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of index queries per second, which bounds their load however many clients wait. Beyond it, answers
/// come from the last heartbeats of the executors.
const QUERIES_MAX: u32 = 20;

/// The pools and executors of the farm. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Pools {
    bus: Bus,
    cached: Arc<Mutex<Option<Arc<FarmSnapshot>>>>,
    reading: Arc<tokio::sync::Mutex<()>>,
    /// Number of announcements of starting and stopping executors.
    changes: Arc<AtomicU64>,
    /// Set once Redis has answered.
    index: Arc<OnceLock<Actions>>,
    /// Start of the current second, and the number of index queries in it.
    queries: Arc<Mutex<Option<(Instant, u32)>>>,
}

/// Where an execution is that no executor has reported yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// An executor has it.
    With(ExecutorId),
    /// It waits, for the given reason.
    Waits(String),
}

/// A snapshot of the pools and executors.
#[derive(Debug)]
pub(crate) struct FarmSnapshot {
    pools: Vec<Pool>,
    executors: Vec<ExecutorHeartbeat>,
    at: Instant,
    /// Value of `Pools::changes` when the snapshot was read.
    changes: u64,
}

impl Pools {
    pub(crate) fn new(bus: Bus, index: Arc<OnceLock<Actions>>) -> Self {
        Self {
            bus,
            cached: Arc::default(),
            reading: Arc::default(),
            changes: Arc::default(),
            index,
            queries: Arc::default(),
        }
    }

    /// Counts starting and stopping executors until the connection is closed.
    pub(crate) async fn follow(&self) -> Result<(), BusError> {
        let changes = Arc::clone(&self.changes);
        let note = move || {
            changes.fetch_add(1, Ordering::Relaxed);
        };
        self.bus.on_changed(&Subject::PoolChanged, note).await
    }

    /// The executor of an execution, or why it waits; `None` if neither can be determined.
    pub(crate) async fn whereabouts(&self, record: &ExecutionRecord) -> Option<Whereabouts> {
        let (key, pool) = (record.execution.key(), &record.execution.pool);
        if let Some(actions) = self.index.get().filter(|_| self.may_query()) {
            let asked = actions.queue(pool, Some(&key), self.bus.now());
            if let Ok(Ok(queue)) = tokio::time::timeout(INDEX_PATIENCE, asked).await
                && queue.ready
            {
                if let Some(executor) = &queue.executor {
                    return Some(Whereabouts::With(executor.clone()));
                }
                let closed = self.snapshot().await.ok().and_then(|snapshot| snapshot.closed(pool));
                return Some(Whereabouts::Waits(why_in(record, &queue, closed.as_deref())));
            }
        }
        let snapshot = self.snapshot().await.ok()?;
        Some(match snapshot.runner(&key) {
            Some(runner) => Whereabouts::With(runner.executor.clone()),
            None => Whereabouts::Waits(snapshot.why(record)),
        })
    }

    /// Counts an index query and returns whether it is within the limit.
    fn may_query(&self) -> bool {
        let mut queries = self.queries.lock();
        let (began, count) = queries
            .filter(|(began, _)| began.elapsed() < Duration::from_secs(1))
            .unwrap_or_else(|| (Instant::now(), 0));
        *queries = Some((began, count + 1));
        count < QUERIES_MAX
    }

    /// The pool that can run an action with this `platform` and these `needs`.
    pub(crate) async fn admit(
        &self,
        platform: &[(String, String)],
        needs: &Needs,
    ) -> Result<PoolName, Status> {
        let snapshot = self.snapshot().await?;
        if let Ok(pool) = admit(platform, needs, &snapshot.pools, |pool| snapshot.lives(pool)) {
            return Ok(pool);
        }
        let snapshot = self.younger_than(AGE_OF_REFUSAL).await?;
        admit(platform, needs, &snapshot.pools, |pool| snapshot.lives(pool)).map_err(|error| match &error {
            AdmitError::NothingRegistered => status::retry(Code::Unavailable, error.to_string(), RETRY),
            AdmitError::Refused(_) => Status::failed_precondition(error.to_string()),
        })
    }

    /// The pools and executors, at most [`AGE_MAX`] old.
    pub(crate) async fn snapshot(&self) -> Result<Arc<FarmSnapshot>, Status> {
        let snapshot =
            self.cached().filter(|snapshot| snapshot.changes == self.changes.load(Ordering::Relaxed));
        match snapshot {
            Some(snapshot) if snapshot.at.elapsed() < AGE => Ok(snapshot),
            Some(snapshot) if snapshot.at.elapsed() < AGE_MAX => {
                let this = self.clone();
                tokio::spawn(async move { this.younger_than(AGE).await.map(drop) });
                Ok(snapshot)
            }
            Some(_) | None => self.younger_than(AGE).await,
        }
    }

    /// The last snapshot, however old it is.
    pub(crate) fn cached(&self) -> Option<Arc<FarmSnapshot>> {
        self.cached.lock().clone()
    }

    async fn younger_than(&self, age: Duration) -> Result<Arc<FarmSnapshot>, Status> {
        // One caller reads, the others wait for its result.
        let _reading = self.reading.lock().await;
        // Loaded before reading, so that later changes cause another read.
        let changes = self.changes.load(Ordering::Relaxed);
        let young = |snapshot: &Arc<FarmSnapshot>| snapshot.at.elapsed() < age && snapshot.changes == changes;
        if let Some(snapshot) = self.cached().filter(young) {
            return Ok(snapshot);
        }
        let (pools, executors) = tokio::try_join!(self.bus.buckets().pools(), self.bus.leases().executors())
            .map_err(faults::bus)?;
        let snapshot = Arc::new(FarmSnapshot { pools, executors, at: Instant::now(), changes });
        *self.cached.lock() = Some(Arc::clone(&snapshot));
        Ok(snapshot)
    }
}

impl FarmSnapshot {
    /// The executor whose heartbeat lists `key` as running.
    pub(crate) fn runner(&self, key: &ExecutionKey) -> Option<&ExecutorHeartbeat> {
        self.executors.iter().find(|executor| executor.running.contains(key))
    }

    /// Whether `pool` has a live executor that accepts actions or will do so again on its own.
    fn lives(&self, pool: &PoolName) -> bool {
        let takes = |status| matches!(status, ExecutorStatus::Ready | ExecutorStatus::Closed);
        self.executors.iter().any(|executor| executor.pool == *pool && takes(executor.status))
    }

    /// Whether `pool` has no live executor.
    pub(crate) fn is_empty(&self, pool: &PoolName) -> bool {
        !self.executors.iter().any(|executor| executor.pool == *pool)
    }

    /// Why no executor of `pool` admits actions, as the predicate of a sentence: they drain, or a window
    /// or sensor stops them.
    fn closed(&self, pool: &PoolName) -> Option<String> {
        let of_pool = || self.executors.iter().filter(|executor| executor.pool == *pool);
        let closed = || of_pool().filter(|executor| executor.status == ExecutorStatus::Closed);
        if of_pool().any(|executor| executor.status == ExecutorStatus::Ready) {
            return None;
        }
        if closed().next().is_none() {
            return of_pool().next().map(|_| "are draining".to_owned());
        }
        let red = closed().find_map(|executor| executor.window.red.first());
        let because = red.map(|red| format!(": {red}")).unwrap_or_default();
        Some(format!("are at their load limit{because}"))
    }

    /// Why an execution that no executor has waits, as a sentence.
    pub(crate) fn why(&self, record: &ExecutionRecord) -> String {
        let pool = &record.execution.pool;
        let before = before(record);
        let of_pool = || self.executors.iter().filter(|executor| executor.pool == *pool);
        let ready = || of_pool().filter(|executor| executor.status == ExecutorStatus::Ready);
        let (all, taking) = (of_pool().count(), ready().count());
        let slots: usize = ready().map(|executor| usize::from(executor.slots)).sum();
        let busy: usize = ready().map(|executor| executor.running.len()).sum();
        let why = match (all, taking) {
            (0, _) => format!("pool {pool} has no executor now; the action waits for one to start"),
            (all, 0) => {
                let closed = self.closed(pool).present("a pool without a ready executor admits actions");
                format!("the {all} executors of pool {pool} {closed}")
            }
            (_, taking) if busy >= slots => {
                format!("pool {pool} is full: {busy} actions run on {slots} slots of {taking} executors")
            }
            (_, taking) => {
                format!(
                    "pool {pool} has {taking} executors with {busy} of {slots} slots in use; the action starts soon"
                )
            }
        };
        format!("{before}{why}{}", priority_text(record))
    }
}

/// Why an execution waits, according to the index.
fn why_in(record: &ExecutionRecord, queue: &Queue, closed: Option<&str>) -> String {
    let (pool, before) = (&record.execution.pool, before(record));
    let Queue { executors, waiting, running, .. } = queue;
    let ahead = queue.place.map(|place| format!(", {place} of them ahead of this one")).unwrap_or_default();
    if *executors == 0 {
        return format!(
            "{before}pool {pool} has no executor now; the action waits for one to start ({waiting} waiting{ahead}){}",
            priority_text(record)
        );
    }
    let closed = closed.map(|closed| format!("; its executors {closed}")).unwrap_or_default();
    format!(
        "{before}pool {pool} has {running} actions assigned to {executors} executors, {waiting} waiting{ahead}{closed}{}",
        priority_text(record)
    )
}

/// The priority of an execution, as the end of a sentence.
fn priority_text(record: &ExecutionRecord) -> String {
    let Urgency { band, priority } = record.urgency();
    match priority {
        0 => format!("; its priority is {band}"),
        _ => format!("; its priority is {band}, {priority} inside it"),
    }
}

fn before(record: &ExecutionRecord) -> String {
    match &record.phase {
        ExecutionPhase::Requeued { reason, .. } => {
            format!("attempt {} waits because the previous one was lost ({reason}): ", record.attempt)
        }
        ExecutionPhase::Accepted
        | ExecutionPhase::Hedged
        | ExecutionPhase::CopyEnded { .. }
        | ExecutionPhase::Raised
        | ExecutionPhase::Finished(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use model::{
        ActionKeys, Attempt, ClientTool, DigestFunction, Execution, ExecutionId, Millis, Priority, Resources,
        Sequence, WindowState,
    };

    use super::*;

    fn executor(pool: &str, slots: u16, running: usize, status: ExecutorStatus) -> ExecutorHeartbeat {
        let key = || ExecutionKey { group: "g".parse().unwrap(), id: ExecutionId::generate() };
        ExecutorHeartbeat {
            executor: format!("executor-{pool}-{slots}").parse().unwrap(),
            pool: pool.parse().unwrap(),
            host: "h".into(),
            home: "home".parse().unwrap(),
            pid: 1,
            started_at_ms: Millis(0),
            status,
            executor_type: model::ExecutorType::x86(),
            slots,
            capacity: Resources::default(),
            held: Resources::default(),
            running: (0..running).map(|_| key()).collect(),
            room: model::Room::default(),
            window: WindowState::default(),
            ttl_ms: 1000,
            clock_skew_ms: None,
        }
    }

    fn record() -> ExecutionRecord {
        ExecutionRecord::accepted(Execution {
            id: ExecutionId::generate(),
            group: "g".parse().unwrap(),
            instance: String::new(),
            action: DigestFunction::Sha256.digest(b"a"),
            band: Priority::Batch,
            priority: 0,
            pool: "big".parse().unwrap(),
            timeout_ms: 1,
            do_not_cache: false,
            accepted_at_ms: Millis(0),
            expires_at_ms: Millis(0),
            max_attempts: Attempt(3),
            traceparent: None,
            client: ClientTool::default(),
            build: None,
            needs: Needs::default(),
            keys: ActionKeys::default(),
        })
    }

    fn why(executors: Vec<ExecutorHeartbeat>) -> String {
        FarmSnapshot { pools: Vec::new(), executors, at: Instant::now(), changes: 0 }.why(&record())
    }

    #[test]
    fn what_waits_says_for_what() {
        assert!(
            why(vec![executor("other", 4, 0, ExecutorStatus::Ready)])
                .contains("pool big has no executor now")
        );
        let draining = vec![executor("big", 4, 0, ExecutorStatus::Draining)];
        let snapshot =
            |executors| FarmSnapshot { pools: Vec::new(), executors, at: Instant::now(), changes: 0 };
        assert_eq!(snapshot(draining.clone()).closed(&"big".parse().unwrap()).unwrap(), "are draining");
        assert!(why(draining).contains("are draining"));
        let mut closed = executor("big", 4, 0, ExecutorStatus::Closed);
        closed.window.red.push("only 3 % of memory is left".into());
        let closed = why(vec![closed, executor("big", 3, 0, ExecutorStatus::Draining)]);
        assert_eq!(
            closed,
            "the 2 executors of pool big are at their load limit: only 3 % of memory is left; its priority is batch"
        );
        let full =
            vec![executor("big", 2, 2, ExecutorStatus::Ready), executor("big", 3, 3, ExecutorStatus::Ready)];
        assert_eq!(
            why(full),
            "pool big is full: 5 actions run on 5 slots of 2 executors; its priority is batch"
        );
        let free = why(vec![executor("big", 2, 1, ExecutorStatus::Ready)]);
        assert!(free.contains("1 executors with 1 of 2 slots in use"), "{free}");
        let queue = Queue { executors: 2, waiting: 9, running: 4, place: Some(7), ..Queue::default() };
        let why = why_in(&record(), &queue, None);
        assert!(
            why.ends_with(
                "4 actions assigned to 2 executors, 9 waiting, 7 of them ahead of this one; its priority is batch"
            ),
            "{why}"
        );
        let short = why_in(&record(), &queue, Some("are at their load limit: no memory is left"));
        assert!(short.contains("; its executors are at their load limit: no memory is left"), "{short}");
        assert!(why_in(&record(), &Queue::default(), None).contains("pool big has no executor now"));
        let urgent = Urgency { band: Priority::Emergency, priority: -3 };
        let raised = record().raised(Sequence(1), urgent, Millis(5));
        assert!(why_in(&raised, &queue, None).ends_with("its priority is emergency, -3 inside it"));
        let again = record().requeued(Sequence(1), "its executor died".into(), None, true, Millis(5));
        let snapshot =
            FarmSnapshot { pools: Vec::new(), executors: Vec::new(), at: Instant::now(), changes: 0 };
        assert!(
            snapshot
                .why(&again)
                .starts_with("attempt 2 waits because the previous one was lost (its executor died): ")
        );
    }
}
