//! Who waits for which execution here, and what is known of each.
//!
//! All who wait for one execution share a subscription to its live subject. A push that gets lost costs at most one
//! slow re-read: everything that is waited for is read again, many to a request, every few seconds (less often where it is
//! much) and whenever the connection to the bus came back.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::Subscriber;
use bus::{ActionSubject, Bus, BusError, Live, Stored, stream};
use futures::StreamExt as _;
use model::{ExecutionKey, ExecutionProgress, ExecutionRecord, Sequence};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    interest::{Interest, Invocation, Role, Standing},
    nobody,
    state::Known,
};

/// How long a lost push may go unnoticed, but for how many are read again at a time.
const REPAIR: Duration = Duration::from_secs(5);
/// Time for each of these: they must be no load for the bus.
const REPAIR_EACH: Duration = Duration::from_millis(1);
const RETRY: Duration = Duration::from_millis(250);
/// How long it may take from a gateway's question to the write by which it ends what nobody wants.
const DOUBT: Duration = Duration::from_secs(15);

/// All executions that somebody waits for at this gateway. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Waiters {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) bus: Bus,
    /// Tells this gateway from others.
    pub(super) id: uuid::Uuid,
    /// How long an execution goes on for nobody.
    grace: Duration,
    pub(super) stop: CancellationToken,
    table: Mutex<Table>,
    /// There is something to re-read again.
    filled: Notify,
}

#[derive(Debug, Default)]
struct Table {
    watched: HashMap<ExecutionKey, Arc<Watched>>,
    /// What a gateway may be about to end, on the strength of what it was told here, and until when.
    doubted: HashMap<ExecutionKey, Instant>,
    /// As many of these are sorted out when they are reached.
    doubted_max: usize,
}

#[derive(Debug)]
struct Watched {
    key: ExecutionKey,
    known: watch::Sender<Known>,
    interest: Mutex<Interest>,
}

/// One who waits for an execution. When the last one is dropped, everywhere, the execution is ended.
#[derive(Debug)]
pub(crate) struct Waiter {
    watched: Arc<Watched>,
    known: watch::Receiver<Known>,
    role: Role,
    doubted: bool,
}

/// What is here of an execution that others went to.
#[derive(Debug)]
pub(crate) enum Here {
    /// It goes on; this waits for it too.
    Runs(Waiter),
    /// It has ended.
    Over,
    /// Nobody follows it any more.
    Unwatched,
}

impl Waiters {
    /// Nobody waits yet. Runs until `stop`.
    pub(crate) fn new(bus: Bus, grace: Duration, stop: CancellationToken) -> Self {
        let (id, table) = (uuid::Uuid::new_v4(), Mutex::default());
        let shared = Shared { bus, id, grace, stop, table, filled: Notify::new() };
        let this = Self { shared: Arc::new(shared) };
        tokio::spawn(this.clone().repair());
        this
    }

    /// Waits for `key`. What is written from now on is heard.
    pub(crate) async fn wait(&self, key: &ExecutionKey, role: &Role) -> Result<Waiter, BusError> {
        if let Some(waiter) = self.shared.lock().waiter(key, role) {
            return Ok(waiter);
        }
        let heard = self.subscribe(key).await?;
        let mut table = self.shared.lock();
        if let Some(waiter) = table.waiter(key, role) {
            return Ok(waiter);
        }
        let watched =
            Watched { key: key.clone(), known: watch::Sender::default(), interest: Mutex::default() };
        let watched = Arc::new(watched);
        table.watched.insert(key.clone(), Arc::clone(&watched));
        let waiter = Waiter::of(&watched, role, table.doubts(key));
        drop(table);
        self.shared.filled.notify_one();
        tokio::spawn(self.clone().follow(watched, heard));
        Ok(waiter)
    }

    /// Waits for `key` too if it is followed here and goes on.
    pub(crate) fn join(&self, key: &ExecutionKey, role: &Role) -> Here {
        let table = self.shared.lock();
        match table.watched.get(key) {
            None => Here::Unwatched,
            Some(watched) if watched.known.borrow().is_over() => Here::Over,
            Some(watched) => Here::Runs(Waiter::of(watched, role, table.doubts(key))),
        }
    }

    /// What is known of `key`, if anybody waits for it here.
    pub(crate) fn known(&self, key: &ExecutionKey) -> Option<Known> {
        self.shared.lock().watched.get(key).map(|watched| watched.known.borrow().clone())
    }

    /// Whether anybody waits for `key` here. If not, whoever comes from now on knows that it is doubted.
    pub(super) fn has(&self, key: &ExecutionKey) -> bool {
        let mut table = self.shared.lock();
        let has = table.watched.get(key).is_some_and(|watched| watched.known.receiver_count() > 0);
        if !has {
            table.doubt(key);
        }
        has
    }

    /// It stands in the log that somebody waits for `key`.
    pub(super) fn settle(&self, key: &ExecutionKey) {
        self.shared.lock().doubted.remove(key);
    }

    /// How much `key` is wanted here besides by `caller`; `None` when nobody follows it. Whoever comes from now on knows
    /// that it is doubted.
    pub(super) fn standing(&self, key: &ExecutionKey, caller: &Invocation) -> Option<Standing> {
        let mut table = self.shared.lock();
        table.doubt(key);
        table.watched.get(key).map(|watched| watched.interest().standing(caller))
    }

    async fn subscribe(&self, key: &ExecutionKey) -> Result<Subscriber, BusError> {
        let failed = |source| BusError::Failed { what: format!("waiting for {key}"), source };
        let heard = self.shared.bus.client().subscribe(ActionSubject::live(key)).await;
        heard.map_err(|error| failed(Box::new(error)))
    }

    /// Follows one execution as long as somebody waits, and ends it when nobody does any more.
    async fn follow(self, watched: Arc<Watched>, mut heard: Subscriber) {
        let mut alone_since: Option<Instant> = None;
        loop {
            let over = watched.known.borrow().is_over();
            if over && alone_since.is_some() {
                break;
            }
            tokio::select! {
                () = self.shared.stop.cancelled() => break,
                message = heard.next() => match message {
                    Some(message) => watched.hear(Live::of(message)),
                    None => match Box::pin(self.subscribe(&watched.key)).await {
                        Ok(again) => heard = again,
                        Err(error) => {
                            debug!(%error, "the connection to the bus is closed");
                            break;
                        }
                    },
                },
                () = watched.known.closed(), if alone_since.is_none() => alone_since = Some(Instant::now()),
                () = sleep_until(alone_since.map(|since| since + self.shared.grace)) => {
                    if !self.leave(&watched) {
                        alone_since = None;
                        continue;
                    }
                    // What is heard meanwhile no longer matters: the end is written behind the last record.
                    drop(heard);
                    let known = watched.known.borrow().clone();
                    // What is rare takes no room in what all have: there are tens of thousands of these.
                    Box::pin(nobody::waits(&self, &watched.key, &known)).await;
                    return;
                }
            }
        }
        self.forget(&watched);
    }

    /// Takes it out of the list if really nobody waits.
    fn leave(&self, watched: &Watched) -> bool {
        let mut table = self.shared.lock();
        let alone = watched.known.receiver_count() == 0;
        if alone {
            table.watched.remove(&watched.key);
        }
        alone
    }

    /// Takes it out of the list. Whoever came in the last moment has what is known.
    fn forget(&self, watched: &Watched) {
        self.shared.lock().watched.remove(&watched.key);
    }

    /// Reads again what is waited for, as long as anything is.
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
                    debug!(error = telemetry::error_chain(&error), "reading again what is waited for");
                    RETRY
                }
            };
        }
    }

    /// How many there were.
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
                Some(stored) => watched.hear(Some(Live::Stored((*stored).clone()))),
                None => self.check_lost(watched).await?,
            }
        }
        Ok(u32::try_from(open.len()).unwrap_or(u32::MAX))
    }

    /// What was known and is not there any more will never end.
    async fn check_lost(&self, watched: &Watched) -> Result<(), BusError> {
        if watched.known.borrow().last.is_none() {
            return Ok(());
        }
        if let Some((sequence, record)) = self.shared.bus.latest_execution(&watched.key).await? {
            watched.learn(sequence, record);
        } else {
            warn!(execution = %watched.key, "an execution that is waited for is stored no more");
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
    /// One more who waits for what is followed already.
    fn waiter(&self, key: &ExecutionKey, role: &Role) -> Option<Waiter> {
        Some(Waiter::of(self.watched.get(key)?, role, self.doubts(key)))
    }

    fn doubt(&mut self, key: &ExecutionKey) {
        let now = Instant::now();
        if self.doubted.len() >= self.doubted_max {
            self.doubted.retain(|_, until| *until > now);
            self.doubted_max = 1024.max(2 * self.doubted.len());
        }
        self.doubted.insert(key.clone(), now + DOUBT);
    }

    fn doubts(&self, key: &ExecutionKey) -> bool {
        self.doubted.get(key).is_some_and(|until| *until > Instant::now())
    }
}

impl Watched {
    fn interest(&self) -> MutexGuard<'_, Interest> {
        self.interest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, live: Option<Live>) {
        match live {
            None => {}
            Some(Live::Progress(progress)) => self.progress(progress),
            Some(Live::Stored(stored)) => match stored.execution() {
                Ok(record) => self.learn(stored.sequence, record),
                Err(error) => warn!(error = telemetry::error_chain(&error), "a record is left out"),
            },
        }
    }

    fn learn(&self, sequence: Sequence, record: ExecutionRecord) {
        self.known.send_if_modified(|known| known.take(sequence, record));
    }

    fn progress(&self, progress: ExecutionProgress) {
        self.known.send_if_modified(|known| known.hear(progress));
    }
}

impl Waiter {
    /// Only under the lock of the table: it is there that the last one is found to be gone.
    fn of(watched: &Arc<Watched>, role: &Role, doubted: bool) -> Self {
        watched.interest().come(role);
        let (watched, known) = (Arc::clone(watched), watched.known.subscribe());
        Self { watched, known, role: role.clone(), doubted }
    }

    /// Whether a gateway may be about to end this execution, not knowing of this one who waits.
    pub(crate) fn is_doubted(&self) -> bool {
        self.doubted
    }

    /// Which execution.
    pub(crate) fn key(&self) -> &ExecutionKey {
        &self.watched.key
    }

    /// What is known now; [`Self::changed`] returns when there is more.
    pub(crate) fn known(&mut self) -> Known {
        self.known.borrow_and_update().clone()
    }

    /// Returns when more is known.
    pub(crate) async fn changed(&mut self) {
        if self.known.changed().await.is_err() {
            // Whoever tells us lives as long as this does.
            std::future::pending::<()>().await;
        }
    }

    /// Tells all who wait of a record that was read.
    pub(crate) fn learn(&self, sequence: Sequence, record: ExecutionRecord) {
        self.watched.learn(sequence, record);
    }

    /// Tells all who wait what an executor was found doing.
    pub(crate) fn learn_progress(&self, progress: ExecutionProgress) {
        self.watched.progress(progress);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.watched.interest().go(&self.role);
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
