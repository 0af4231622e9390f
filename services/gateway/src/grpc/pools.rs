//! The pools and live executors of the farm, read from the bus and cached briefly. Also why an execution waits: from
//! the index if available, otherwise from the cached state.

use std::{
    collections::BTreeSet,
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
    Pool, PoolName, Requirements, Urgency,
};
use parking_lot::Mutex;
use policy::{
    actions::{AdmitError, Offers, admit, expected_wait, offering},
    requirements::satisfies,
};
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
    Waits(Why),
}

/// Why an execution waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Why {
    /// The reason as a sentence.
    pub(crate) text: String,
    /// Its place in the queue, if the index knows it.
    pub(crate) position: Option<Position>,
}

/// Place of an execution in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// Number of executions of its group ahead of it.
    pub(crate) of_group: u64,
    /// Number of executions of other groups ahead of it, if groups take turns.
    pub(crate) of_others: u64,
    /// Expected time until it starts; `None` if it cannot be estimated.
    pub(crate) expected: Option<Duration>,
}

impl From<String> for Why {
    fn from(text: String) -> Self {
        Self { text, position: None }
    }
}

/// A snapshot of the pools and executors.
#[derive(Debug)]
pub(crate) struct FarmSnapshot {
    offers: Offers,
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
        let (key, requirements) = (record.execution.key(), &record.execution.requirements);
        if let Some(actions) = self.index.get().filter(|_| self.may_query())
            && let Ok(snapshot) = self.snapshot().await
        {
            let (id, pools) = (requirements.id(), snapshot.pools(requirements));
            let asked = actions.queue(&id, pools, Some(&key), self.bus.now());
            if let Ok(Ok(queue)) = tokio::time::timeout(INDEX_PATIENCE, asked).await
                && queue.ready
            {
                if let Some(executor) = &queue.executor {
                    return Some(Whereabouts::With(executor.clone()));
                }
                return Some(Whereabouts::Waits(snapshot.why_in(record, &queue)));
            }
        }
        let snapshot = self.snapshot().await.ok()?;
        Some(match snapshot.runner(&key) {
            Some(runner) => Whereabouts::With(runner.executor.clone()),
            None => Whereabouts::Waits(snapshot.why(record).into()),
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

    /// What an executor must offer to run an action with this `platform` and these `needs`.
    pub(crate) async fn admit(
        &self,
        platform: &[(String, String)],
        needs: &Needs,
    ) -> Result<Requirements, Status> {
        let snapshot = self.snapshot().await?;
        if let Ok(requirements) = admit(platform, needs, &snapshot.offers) {
            return Ok(requirements);
        }
        let snapshot = self.younger_than(AGE_OF_REFUSAL).await?;
        admit(platform, needs, &snapshot.offers).map_err(|error| match &error {
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
        let (offers, executors) = service::offers(&self.bus).await.map_err(faults::bus)?;
        let snapshot = Arc::new(FarmSnapshot { offers, executors, at: Instant::now(), changes });
        *self.cached.lock() = Some(Arc::clone(&snapshot));
        Ok(snapshot)
    }
}

impl FarmSnapshot {
    /// The executor whose heartbeat lists `key` as running.
    pub(crate) fn runner(&self, key: &ExecutionKey) -> Option<&ExecutorHeartbeat> {
        self.executors.iter().find(|executor| executor.running.contains(key))
    }

    /// The pools with live executors that meet `requirements`.
    fn pools<'a>(&'a self, requirements: &Requirements) -> BTreeSet<&'a PoolName> {
        self.able(requirements).map(|executor| &executor.pool).collect()
    }

    /// The live executors that meet `requirements`.
    fn able<'a>(&'a self, requirements: &Requirements) -> impl Iterator<Item = &'a ExecutorHeartbeat> {
        let offers: Vec<&Pool> =
            self.offers.present.iter().filter(|offer| satisfies(offer, requirements)).collect();
        let meets = move |executor: &&ExecutorHeartbeat| {
            offers.iter().any(|offer| {
                executor.pool == offer.name
                    && executor.properties == offer.properties
                    && executor.root_is_input == offer.root_is_input
            })
        };
        self.executors.iter().filter(meets)
    }

    /// Whether no live executor meets `requirements`.
    pub(crate) fn has_none(&self, requirements: &Requirements) -> bool {
        self.able(requirements).next().is_none()
    }

    /// Why no live executor that meets `requirements` admits actions, as the predicate of a sentence: they drain, or a
    /// window or sensor stops them.
    fn closed(&self, requirements: &Requirements) -> Option<String> {
        let able = || self.able(requirements);
        let closed = || able().filter(|executor| executor.status == ExecutorStatus::Closed);
        if able().any(|executor| executor.status == ExecutorStatus::Ready) {
            return None;
        }
        if closed().next().is_none() {
            return able().next().map(|_| "are draining".to_owned());
        }
        let red = closed().find_map(|executor| executor.window.red.first());
        let because = red.map(|red| format!(": {red}")).unwrap_or_default();
        Some(format!("are at their load limit{because}"))
    }

    /// Why an execution waits that no live executor can run, as a sentence without its end.
    fn none_live(&self, requirements: &Requirements) -> String {
        let with = offering(requirements);
        let may_start = self.offers.present.iter().any(|offer| satisfies(offer, requirements));
        let next = if may_start {
            "the action waits for the autoscaler to start one"
        } else {
            "those that could run the action left the farm; it waits for one to come"
        };
        format!("no executor{with} is live; {next}")
    }

    /// Why an execution that no executor has waits, as a sentence.
    pub(crate) fn why(&self, record: &ExecutionRecord) -> String {
        let requirements = &record.execution.requirements;
        let (before, with) = (before(record), offering(requirements));
        let ready = || self.able(requirements).filter(|executor| executor.status == ExecutorStatus::Ready);
        let (all, taking) = (self.able(requirements).count(), ready().count());
        let slots: usize = ready().map(|executor| usize::from(executor.slots)).sum();
        let busy: usize = ready().map(|executor| executor.running.len()).sum();
        let why = match (all, taking) {
            (0, _) => self.none_live(requirements),
            (all, 0) => {
                let closed =
                    self.closed(requirements).present("executors of which none is ready admit actions");
                format!("the {all} executors{with} {closed}")
            }
            (_, taking) if busy >= slots => {
                format!(
                    "all executors{with} are full: {busy} actions run on {slots} slots of {taking} executors"
                )
            }
            (_, taking) => {
                format!(
                    "{busy} of {slots} slots of the {taking} executors{with} are in use; the action starts soon"
                )
            }
        };
        format!("{before}{why}{}", priority_text(record))
    }

    /// Why an execution waits, according to the index.
    fn why_in(&self, record: &ExecutionRecord, queue: &Queue) -> Why {
        let requirements = &record.execution.requirements;
        let (before, with, priority) = (before(record), offering(requirements), priority_text(record));
        let Queue { executors, waiting, running, .. } = queue;
        if *executors == 0 {
            let none = self.none_live(requirements);
            return format!("{before}{none} ({waiting} waiting){priority}").into();
        }
        let position = position(queue);
        let ahead = position.map(Position::text).unwrap_or_default();
        let closed = self.closed(requirements).map(|closed| format!("; these {closed}")).unwrap_or_default();
        let text = format!(
            "{before}{running} actions are assigned to the {executors} executors{with}, {waiting} waiting{ahead}{closed}{priority}"
        );
        Why { text, position }
    }
}

/// The place of an execution that the index knows.
fn position(queue: &Queue) -> Option<Position> {
    let of_group = queue.place?;
    let expected = expected_wait(of_group.saturating_add(queue.others), queue.running, queue.mean);
    Some(Position { of_group, of_others: queue.others, expected })
}

impl Position {
    /// The place as a part of a sentence after a count of waiting actions.
    fn text(self) -> String {
        let Self { of_group, of_others, expected } = self;
        let others = if of_others > 0 { format!(" and {of_others} of other groups") } else { String::new() };
        let starts = expected
            .map(|wait| format!("; it starts in about {}", humantime::format_duration(rounded(wait))))
            .unwrap_or_default();
        format!(", {of_group} of its group{others} ahead of this one{starts}")
    }
}

/// A time in whole seconds, at least one, without the seconds if it is long.
fn rounded(wait: Duration) -> Duration {
    const LONG: u64 = 600;
    let seconds = wait.as_secs().max(1);
    Duration::from_secs(if seconds > LONG { seconds / 60 * 60 } else { seconds })
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
    use std::collections::BTreeMap;

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
            properties: BTreeMap::new(),
            root_is_input: false,
            capacity: Resources::default(),
            held: Resources::default(),
            running: (0..running).map(|_| key()).collect(),
            room: model::Room::default(),
            window: WindowState::default(),
            images: Vec::new(),
            image_names: Vec::new(),
            shared_services: Vec::new(),
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
            requirements: big(),
            timeout_ms: 1,
            image: None,
            do_not_cache: false,
            zone: None,
            caller: String::new(),
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

    /// What only executors of the pool `big` meet.
    fn big() -> Requirements {
        Requirements::of([("Pool", "big")])
    }

    fn snapshot(executors: Vec<ExecutorHeartbeat>) -> FarmSnapshot {
        let offers = Offers::of(&executors, &[], &BTreeSet::new());
        FarmSnapshot { offers, executors, at: Instant::now(), changes: 0 }
    }

    fn why(executors: Vec<ExecutorHeartbeat>) -> String {
        snapshot(executors).why(&record())
    }

    #[test]
    fn what_waits_says_for_what() {
        let none = why(vec![executor("other", 4, 0, ExecutorStatus::Ready)]);
        assert!(none.starts_with(r#"no executor with Pool = "big" is live; those that could run"#), "{none}");
        let draining = vec![executor("big", 4, 0, ExecutorStatus::Draining)];
        assert_eq!(snapshot(draining.clone()).closed(&big()).unwrap(), "are draining");
        assert!(why(draining).contains("are draining"));
        let mut closed = executor("big", 4, 0, ExecutorStatus::Closed);
        closed.window.red.push("only 3 % of memory is left".into());
        let closed = vec![closed, executor("big", 3, 0, ExecutorStatus::Draining)];
        assert_eq!(
            why(closed.clone()),
            "the 2 executors with Pool = \"big\" are at their load limit: only 3 % of memory is left; \
             its priority is batch"
        );
        let full =
            vec![executor("big", 2, 2, ExecutorStatus::Ready), executor("big", 3, 3, ExecutorStatus::Ready)];
        assert_eq!(
            why(full),
            "all executors with Pool = \"big\" are full: 5 actions run on 5 slots of 2 executors; \
             its priority is batch"
        );
        let free = why(vec![executor("big", 2, 1, ExecutorStatus::Ready)]);
        assert!(free.starts_with("1 of 2 slots of the 1 executors"), "{free}");
        let mean = Duration::from_secs(6);
        let queue = Queue {
            executors: 2,
            waiting: 9,
            running: 4,
            place: Some(6),
            others: 1,
            mean,
            ..Queue::default()
        };
        let live = snapshot(vec![executor("big", 2, 1, ExecutorStatus::Ready)]);
        let Why { text, position } = live.why_in(&record(), &queue);
        let wait = Duration::from_secs(12);
        assert_eq!(position, Some(Position { of_group: 6, of_others: 1, expected: Some(wait) }));
        let expected = "4 actions are assigned to the 2 executors with Pool = \"big\", 9 waiting, \
                        6 of its group and 1 of other groups ahead of this one; it starts in about 12s; \
                        its priority is batch";
        assert_eq!(text, expected);
        let short = snapshot(closed).why_in(&record(), &queue).text;
        assert!(short.contains("; these are at their load limit: only 3 % of memory is left"), "{short}");
        let gone = snapshot(Vec::new()).why_in(&record(), &Queue::default()).text;
        assert!(gone.starts_with(r#"no executor with Pool = "big" is live; those"#), "{gone}");
        let urgent = Urgency { band: Priority::Emergency, priority: -3 };
        let raised = record().raised(Sequence(1), urgent, Millis(5));
        assert!(live.why_in(&raised, &queue).text.ends_with("its priority is emergency, -3 inside it"));
        let again = record().requeued(Sequence(1), "its executor died".into(), None, true, Millis(5));
        let before = "attempt 2 waits because the previous one was lost (its executor died): ";
        assert!(snapshot(Vec::new()).why(&again).starts_with(before));
    }
}
