//! Who waits for which execution here, and what is known of each.
//!
//! All who wait for one execution share a subscription to its live subject. A push that gets lost costs at most one
//! slow re-read: everything that is waited for is read again, many to a request, every few seconds and whenever the
//! connection to the bus came back.

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

use super::{nobody, state::Known};

/// How long a lost push may go unnoticed.
const REPAIR: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(250);

/// All executions that somebody waits for at this gateway. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Waiters {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) bus: Bus,
    /// How long an execution goes on for nobody.
    grace: Duration,
    pub(super) stop: CancellationToken,
    watched: Mutex<HashMap<ExecutionKey, Arc<Watched>>>,
    /// There is something to re-read again.
    filled: Notify,
}

#[derive(Debug)]
struct Watched {
    key: ExecutionKey,
    known: watch::Sender<Known>,
}

/// One who waits for an execution. When the last one is dropped, everywhere, the execution is ended.
#[derive(Debug)]
pub(crate) struct Waiter {
    watched: Arc<Watched>,
    known: watch::Receiver<Known>,
}

impl Waiters {
    /// Nobody waits yet. Runs until `stop`.
    pub(crate) fn new(bus: Bus, grace: Duration, stop: CancellationToken) -> Self {
        let shared = Shared { bus, grace, stop, watched: Mutex::default(), filled: Notify::new() };
        let this = Self { shared: Arc::new(shared) };
        tokio::spawn(this.clone().repair());
        this
    }

    /// Waits for `key`. What is written from now on is heard.
    pub(crate) async fn wait(&self, key: &ExecutionKey) -> Result<Waiter, BusError> {
        if let Some(watched) = self.shared.lock().get(key) {
            return Ok(Waiter::of(watched));
        }
        let heard = self.subscribe(key).await?;
        let mut all = self.shared.lock();
        if let Some(watched) = all.get(key) {
            return Ok(Waiter::of(watched));
        }
        let watched = Arc::new(Watched { key: key.clone(), known: watch::Sender::default() });
        let waiter = Waiter::of(&watched);
        all.insert(key.clone(), Arc::clone(&watched));
        drop(all);
        self.shared.filled.notify_one();
        tokio::spawn(self.clone().follow(watched, heard));
        Ok(waiter)
    }

    /// What is known of `key`, if anybody waits for it here.
    pub(crate) fn known(&self, key: &ExecutionKey) -> Option<Known> {
        self.shared.lock().get(key).map(|watched| watched.known.borrow().clone())
    }

    /// Whether anybody waits for `key` here.
    pub(super) fn has(&self, key: &ExecutionKey) -> bool {
        self.shared.lock().get(key).is_some_and(|watched| watched.known.receiver_count() > 0)
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
                    None => match self.subscribe(&watched.key).await {
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
                    nobody::waits(&self, &watched.key, &known).await;
                    return;
                }
            }
        }
        self.forget(&watched);
    }

    /// Takes it out of the list if really nobody waits.
    fn leave(&self, watched: &Watched) -> bool {
        let mut all = self.shared.lock();
        let alone = watched.known.receiver_count() == 0;
        if alone {
            all.remove(&watched.key);
        }
        alone
    }

    /// Takes it out of the list. Whoever came in the last moment has what is known.
    fn forget(&self, watched: &Watched) {
        self.shared.lock().remove(&watched.key);
    }

    /// Reads again what is waited for, as long as anything is.
    async fn repair(self) {
        let mut reconnects = self.shared.bus.reconnects();
        let mut pause = REPAIR;
        loop {
            while self.shared.lock().is_empty() {
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
                Ok(()) => REPAIR,
                Err(error) => {
                    debug!(error = telemetry::error_chain(&error), "reading again what is waited for");
                    RETRY
                }
            };
        }
    }

    async fn read_again(&self) -> Result<(), BusError> {
        let open: Vec<Arc<Watched>> = self
            .shared
            .lock()
            .values()
            .filter(|watched| !watched.known.borrow().is_over())
            .cloned()
            .collect();
        if open.is_empty() {
            return Ok(());
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
        Ok(())
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
    fn lock(&self) -> MutexGuard<'_, HashMap<ExecutionKey, Arc<Watched>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
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
        self.known.send_if_modified(|known| known.progress(progress));
    }
}

impl Waiter {
    fn of(watched: &Arc<Watched>) -> Self {
        Self { watched: Arc::clone(watched), known: watched.known.subscribe() }
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

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
