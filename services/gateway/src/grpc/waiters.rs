//! The clients that wait for executions at this gateway, and the known state of each execution.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bus::{Bus, Live};
use invariant::impossible;
use model::{ExecutionKey, ExecutionProgress, ExecutionRecord, Sequence};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    interest::{ClientCounts, Interest, Invocation, Role},
    state::Known,
};

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
    pub(super) grace: Duration,
    pub(super) stop: CancellationToken,
    pub(super) table: Mutex<Table>,
    /// Notified when the table is no longer empty.
    pub(super) filled: Notify,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) watched: HashMap<ExecutionKey, Arc<Watched>>,
    /// Executions that a gateway may be about to end because of an answer given here, and until when.
    at_risk: HashMap<ExecutionKey, Instant>,
    /// Number of entries at which expired ones are removed.
    at_risk_max: usize,
}

/// An execution that clients wait for.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) key: ExecutionKey,
    pub(super) known: watch::Sender<Known>,
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
    /// Adds a waiter for `key` if it is followed here and not over.
    pub(crate) fn join(&self, key: &ExecutionKey, role: &Role) -> LocalJoin {
        let table = self.shared.table.lock();
        match table.watched.get(key) {
            None => LocalJoin::NotFollowed,
            Some(watched) if watched.known.borrow().is_over() => LocalJoin::Ended,
            Some(watched) => LocalJoin::Joined(Waiter::of(watched, role, table.is_at_risk(key))),
        }
    }

    /// The known state of `key`, if a client waits for it here.
    pub(crate) fn known(&self, key: &ExecutionKey) -> Option<Known> {
        self.shared.table.lock().watched.get(key).map(|watched| watched.known.borrow().clone())
    }

    /// Whether a client waits for `key` here. If not, marks `key` as at risk, which later waiters see.
    pub(super) fn has_client(&self, key: &ExecutionKey) -> bool {
        let mut table = self.shared.table.lock();
        let has_client = table.watched.get(key).is_some_and(|watched| watched.known.receiver_count() > 0);
        if !has_client {
            table.mark_at_risk(key);
        }
        has_client
    }

    /// Clears the mark: the log records that a client waits for `key`.
    pub(super) fn clear_risk(&self, key: &ExecutionKey) {
        self.shared.table.lock().at_risk.remove(key);
    }

    /// How many clients other than `caller` want `key` here; `None` if it is not followed here. Marks `key` as
    /// at risk, which later waiters see.
    pub(super) fn client_counts(&self, key: &ExecutionKey, caller: &Invocation) -> Option<ClientCounts> {
        let mut table = self.shared.table.lock();
        table.mark_at_risk(key);
        table.watched.get(key).map(|watched| watched.interest.lock().client_counts(caller))
    }

    /// Removes the entry if no client waits, and returns whether it did.
    pub(super) fn remove_if_unwanted(&self, watched: &Watched) -> bool {
        let mut table = self.shared.table.lock();
        let alone = watched.known.receiver_count() == 0;
        if alone {
            table.watched.remove(&watched.key);
        }
        alone
    }

    /// Removes the entry. Waiters that were just added keep the known state.
    pub(super) fn remove(&self, watched: &Watched) {
        self.shared.table.lock().watched.remove(&watched.key);
    }
}

impl Shared {
    pub(super) fn new(bus: Bus, grace: Duration, stop: CancellationToken) -> Self {
        let (id, table) = (uuid::Uuid::new_v4(), Mutex::default());
        Self { bus, id, grace, stop, table, filled: Notify::new() }
    }
}

impl Table {
    /// Adds a waiter for `key` if it is already followed.
    pub(super) fn waiter(&self, key: &ExecutionKey, role: &Role) -> Option<Waiter> {
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

    pub(super) fn is_at_risk(&self, key: &ExecutionKey) -> bool {
        self.at_risk.get(key).is_some_and(|until| *until > Instant::now())
    }
}

impl Watched {
    pub(super) fn new(key: ExecutionKey) -> Self {
        Self { key, known: watch::Sender::default(), interest: Mutex::default() }
    }

    pub(super) fn receive(&self, live: Live) {
        match live {
            Live::Progress(progress) => self.progress(progress),
            Live::Stored(stored) => match stored.execution() {
                Ok(record) => self.learn(stored.sequence, record),
                Err(error) => warn!(error = telemetry::error_chain(&error), "skipping an unreadable record"),
            },
        }
    }

    pub(super) fn learn(&self, sequence: Sequence, record: ExecutionRecord) {
        self.known.send_if_modified(|known| known.apply(sequence, record));
    }

    fn progress(&self, progress: ExecutionProgress) {
        self.known.send_if_modified(|known| known.apply_progress(progress));
    }
}

impl Waiter {
    /// Call only under the lock of the table, which also guards the check for the last waiter.
    pub(super) fn of(watched: &Arc<Watched>, role: &Role, at_risk: bool) -> Self {
        watched.interest.lock().add(role);
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
        self.watched.interest.lock().remove(&self.role);
    }
}
