//! The clients that wait for executions at this gateway, and the known state of each execution.
//!
//! All clients that wait for one execution share a subscription to its live subject. A lost message causes a short
//! delay at most: all awaited executions are re-read in batches every few seconds (less often if there are many) and
//! whenever the connection to the bus is restored.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bus::{ActionSubject, Bus, BusError, Live, LiveExecution, Stored, stream};
use invariant::impossible;
use model::{ExecutionKey, ExecutionProgress, ExecutionRecord, Sequence};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    abandoned,
    interest::{ClientCounts, Interest, Invocation, Role},
    state::Known,
};

/// Minimum interval between re-reads, and so the maximum delay of a lost message while few executions are awaited.
const REPAIR: Duration = Duration::from_secs(5);
/// Re-read interval for each awaited execution, which bounds the load on the bus.
const REPAIR_EACH: Duration = Duration::from_millis(1);
const RETRY: Duration = Duration::from_millis(250);
/// Maximum time from a gateway's question to its write that ends an unwanted execution.
const CANCEL_DELAY_MAX: Duration = Duration::from_secs(15);

/// The executions that clients wait for at this gateway. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Waiters {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) bus: Bus,
    /// Distinguishes this gateway from the others.
    pub(super) id: uuid::Uuid,
    /// How long an execution continues without waiting clients.
    grace: Duration,
    pub(super) stop: CancellationToken,
    table: Mutex<Table>,
    /// Notified when the table is no longer empty.
    filled: Notify,
}

#[derive(Debug, Default)]
struct Table {
    watched: HashMap<ExecutionKey, Arc<Watched>>,
    /// Executions that a gateway may be about to end because of an answer given here, and until when.
    at_risk: HashMap<ExecutionKey, Instant>,
    /// Number of entries at which expired ones are removed.
    at_risk_max: usize,
}

#[derive(Debug)]
struct Watched {
    key: ExecutionKey,
    known: watch::Sender<Known>,
    interest: Mutex<Interest>,
}

/// A client that waits for an execution. The execution ends when the last waiter at any gateway is dropped.
#[derive(Debug)]
pub(crate) struct Waiter {
    watched: Arc<Watched>,
    known: watch::Receiver<Known>,
    role: Role,
    at_risk: bool,
}

/// The state of an execution at this gateway.
#[derive(Debug)]
pub(crate) enum LocalJoin {
    /// It is not over; the waiter was added.
    Joined(Waiter),
    /// It has a result or is lost.
    Ended,
    /// No client follows it here.
    NotFollowed,
}

impl Waiters {
    /// Creates an empty set, which is kept up to date until `stop`.
    pub(crate) fn new(bus: Bus, grace: Duration, stop: CancellationToken) -> Self {
        let (id, table) = (uuid::Uuid::new_v4(), Mutex::default());
        let shared = Shared { bus, id, grace, stop, table, filled: Notify::new() };
        let this = Self { shared: Arc::new(shared) };
        tokio::spawn(this.clone().repair());
        this
    }

    /// Adds a waiter for `key`, which sees everything written from now on.
    pub(crate) async fn wait(&self, key: &ExecutionKey, role: &Role) -> Result<Waiter, BusError> {
        if let Some(waiter) = self.shared.lock().waiter(key, role) {
            return Ok(waiter);
        }
        let heard = self.shared.bus.live_execution(key).await?;
        let mut table = self.shared.lock();
        if let Some(waiter) = table.waiter(key, role) {
            return Ok(waiter);
        }
        let watched =
            Watched { key: key.clone(), known: watch::Sender::default(), interest: Mutex::default() };
        let watched = Arc::new(watched);
        table.watched.insert(key.clone(), Arc::clone(&watched));
        let waiter = Waiter::of(&watched, role, table.is_at_risk(key));
        drop(table);
        self.shared.filled.notify_one();
        tokio::spawn(self.clone().follow(watched, heard));
        Ok(waiter)
    }

    /// Adds a waiter for `key` if it is followed here and not over.
    pub(crate) fn join(&self, key: &ExecutionKey, role: &Role) -> LocalJoin {
        let table = self.shared.lock();
        match table.watched.get(key) {
            None => LocalJoin::NotFollowed,
            Some(watched) if watched.known.borrow().is_over() => LocalJoin::Ended,
            Some(watched) => LocalJoin::Joined(Waiter::of(watched, role, table.is_at_risk(key))),
        }
    }

    /// The known state of `key`, if a client waits for it here.
    pub(crate) fn known(&self, key: &ExecutionKey) -> Option<Known> {
        self.shared.lock().watched.get(key).map(|watched| watched.known.borrow().clone())
    }

    /// Whether a client waits for `key` here. If not, marks `key` as at risk, which later waiters see.
    pub(super) fn has_client(&self, key: &ExecutionKey) -> bool {
        let mut table = self.shared.lock();
        let has_client = table.watched.get(key).is_some_and(|watched| watched.known.receiver_count() > 0);
        if !has_client {
            table.mark_at_risk(key);
        }
        has_client
    }

    /// Clears the mark: the log records that a client waits for `key`.
    pub(super) fn clear_risk(&self, key: &ExecutionKey) {
        self.shared.lock().at_risk.remove(key);
    }

    /// How many clients other than `caller` want `key` here; `None` if it is not followed here. Marks `key` as
    /// at risk, which later waiters see.
    pub(super) fn client_counts(&self, key: &ExecutionKey, caller: &Invocation) -> Option<ClientCounts> {
        let mut table = self.shared.lock();
        table.mark_at_risk(key);
        table.watched.get(key).map(|watched| watched.interest().client_counts(caller))
    }

    /// Follows one execution while clients wait for it, and ends it when none is left.
    async fn follow(self, watched: Arc<Watched>, mut heard: LiveExecution) {
        let mut alone_since: Option<Instant> = None;
        loop {
            let over = watched.known.borrow().is_over();
            if over && alone_since.is_some() {
                break;
            }
            tokio::select! {
                () = self.shared.stop.cancelled() => break,
                message = heard.next() => match message {
                    Some(live) => watched.receive(live),
                    None => match Box::pin(self.shared.bus.live_execution(&watched.key)).await {
                        Ok(again) => heard = again,
                        Err(error) => {
                            debug!(%error, "the connection to the bus is closed");
                            break;
                        }
                    },
                },
                () = watched.known.closed(), if alone_since.is_none() => alone_since = Some(Instant::now()),
                () = sleep_until(alone_since.map(|since| since + self.shared.grace)) => {
                    if !self.remove_if_unwanted(&watched) {
                        alone_since = None;
                        continue;
                    }
                    // Later messages do not matter: the end is written after the last known record or not at all.
                    drop(heard);
                    let known = watched.known.borrow().clone();
                    // Boxed, because this case is rare and there are tens of thousands of these futures.
                    Box::pin(abandoned::end_if_abandoned(&self, &watched.key, &known)).await;
                    return;
                }
            }
        }
        self.remove(&watched);
    }

    /// Removes the entry if no client waits, and returns whether it did.
    fn remove_if_unwanted(&self, watched: &Watched) -> bool {
        let mut table = self.shared.lock();
        let alone = watched.known.receiver_count() == 0;
        if alone {
            table.watched.remove(&watched.key);
        }
        alone
    }

    /// Removes the entry. Waiters that were just added keep the known state.
    fn remove(&self, watched: &Watched) {
        self.shared.lock().watched.remove(&watched.key);
    }

    /// Re-reads all awaited executions at intervals, while there are any.
    async fn repair(self) {
        let mut reconnects = self.shared.bus.reconnects();
        let mut pause = REPAIR;
        loop {
            while self.shared.lock().watched.is_empty() {
                tokio::select! {
                    () = self.shared.stop.cancelled() => return,
                    () = self.shared.filled.notified() => {}
                }
            }
            tokio::select! {
                () = self.shared.stop.cancelled() => return,
                () = reconnects.next() => {}
                () = tokio::time::sleep(pause) => {}
            }
            pause = match self.read_again().await {
                Ok(count) => REPAIR.max(REPAIR_EACH.saturating_mul(count)),
                Err(error) => {
                    debug!(error = telemetry::error_chain(&error), "re-reading awaited executions failed");
                    RETRY
                }
            };
        }
    }

    /// Re-reads the awaited executions and returns their number.
    async fn read_again(&self) -> Result<u32, BusError> {
        let open: Vec<Arc<Watched>> = self
            .shared
            .lock()
            .watched
            .values()
            .filter(|watched| !watched.known.borrow().is_over())
            .cloned()
            .collect();
        if open.is_empty() {
            return Ok(0);
        }
        let subjects: Vec<String> =
            open.iter().map(|watched| ActionSubject(watched.key.clone()).to_string()).collect();
        let stored = self.shared.bus.last_of_many(stream::ACTIONS, &subjects).await?;
        let found: HashMap<&str, &Stored> =
            stored.iter().map(|stored| (stored.subject.as_str(), stored)).collect();
        for (watched, subject) in open.iter().zip(&subjects) {
            match found.get(subject.as_str()) {
                Some(stored) => watched.receive(Live::Stored((*stored).clone())),
                None => self.check_lost(watched).await?,
            }
        }
        Ok(u32::try_from(open.len()).unwrap_or(u32::MAX))
    }

    /// Marks an execution as lost if it was known and is no longer stored: it will never end.
    async fn check_lost(&self, watched: &Watched) -> Result<(), BusError> {
        if watched.known.borrow().last.is_none() {
            return Ok(());
        }
        if let Some((sequence, record)) = self.shared.bus.latest_execution(&watched.key).await? {
            watched.learn(sequence, record);
        } else {
            warn!(execution = %watched.key, "an awaited execution is no longer stored");
            watched.known.send_modify(|known| known.lost = true);
        }
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Adds a waiter for `key` if it is already followed.
    fn waiter(&self, key: &ExecutionKey, role: &Role) -> Option<Waiter> {
        Some(Waiter::of(self.watched.get(key)?, role, self.is_at_risk(key)))
    }

    fn mark_at_risk(&mut self, key: &ExecutionKey) {
        let now = Instant::now();
        if self.at_risk.len() >= self.at_risk_max {
            self.at_risk.retain(|_, until| *until > now);
            self.at_risk_max = 1024.max(2 * self.at_risk.len());
        }
        self.at_risk.insert(key.clone(), now + CANCEL_DELAY_MAX);
    }

    fn is_at_risk(&self, key: &ExecutionKey) -> bool {
        self.at_risk.get(key).is_some_and(|until| *until > Instant::now())
    }
}

impl Watched {
    fn interest(&self) -> MutexGuard<'_, Interest> {
        self.interest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receive(&self, live: Live) {
        match live {
            Live::Progress(progress) => self.progress(progress),
            Live::Stored(stored) => match stored.execution() {
                Ok(record) => self.learn(stored.sequence, record),
                Err(error) => warn!(error = telemetry::error_chain(&error), "skipping an unreadable record"),
            },
        }
    }

    fn learn(&self, sequence: Sequence, record: ExecutionRecord) {
        self.known.send_if_modified(|known| known.apply(sequence, record));
    }

    fn progress(&self, progress: ExecutionProgress) {
        self.known.send_if_modified(|known| known.apply_progress(progress));
    }
}

impl Waiter {
    /// Call only under the lock of the table, which also guards the check for the last waiter.
    fn of(watched: &Arc<Watched>, role: &Role, at_risk: bool) -> Self {
        watched.interest().add(role);
        let (watched, known) = (Arc::clone(watched), watched.known.subscribe());
        Self { watched, known, role: role.clone(), at_risk }
    }

    /// Whether a gateway that does not know of this waiter may be about to end the execution.
    pub(crate) fn is_at_risk(&self) -> bool {
        self.at_risk
    }

    pub(crate) fn key(&self) -> &ExecutionKey {
        &self.watched.key
    }

    /// The current known state; [`Self::changed`] returns when it changes.
    pub(crate) fn known(&mut self) -> Known {
        self.known.borrow_and_update().clone()
    }

    /// Waits until the known state changes.
    pub(crate) async fn changed(&mut self) {
        if self.known.changed().await.is_err() {
            impossible!("the state of {} has a waiter but no sender", self.watched.key);
            std::future::pending::<()>().await;
        }
    }

    /// Passes a record that was read to all waiters.
    pub(crate) fn learn(&self, sequence: Sequence, record: ExecutionRecord) {
        self.watched.learn(sequence, record);
    }

    /// Passes the progress of an executor to all waiters.
    pub(crate) fn learn_progress(&self, progress: ExecutionProgress) {
        self.watched.progress(progress);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.watched.interest().remove(&self.role);
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
