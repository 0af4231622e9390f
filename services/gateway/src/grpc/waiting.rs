//! Follows the executions that clients wait for at this gateway.
//!
//! All clients that wait for one execution share a subscription to its live subject. A lost message causes a short
//! delay at most: all awaited executions are re-read in batches every few seconds (less often if there are many) and
//! whenever the connection to the bus is restored.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bus::{ActionSubject, Bus, BusError, Live, LiveExecution, Stored, stream};
use model::ExecutionKey;
use service::sleep_until;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    abandoned,
    interest::Role,
    waiters::{Shared, Waiter, Waiters, Watched},
};

/// Minimum interval between re-reads, and so the maximum delay of a lost message while few executions are awaited.
const REPAIR: Duration = Duration::from_secs(5);
/// Re-read interval for each awaited execution, which bounds the load on the bus.
const REPAIR_EACH: Duration = Duration::from_millis(1);
const RETRY: Duration = Duration::from_millis(250);

impl Waiters {
    /// Creates an empty set, which is kept up to date until `stop`.
    pub(crate) fn new(bus: Bus, grace: Duration, stop: CancellationToken) -> Self {
        let this = Self { shared: Arc::new(Shared::new(bus, grace, stop)) };
        tokio::spawn(this.clone().repair());
        this
    }

    /// Adds a waiter for `key`, which sees everything written from now on.
    pub(crate) async fn wait(&self, key: &ExecutionKey, role: &Role) -> Result<Waiter, BusError> {
        if let Some(waiter) = self.shared.table.lock().waiter(key, role) {
            return Ok(waiter);
        }
        let heard = self.shared.bus.live_execution(key).await?;
        let mut table = self.shared.table.lock();
        if let Some(waiter) = table.waiter(key, role) {
            return Ok(waiter);
        }
        let watched = Arc::new(Watched::new(key.clone()));
        table.watched.insert(key.clone(), Arc::clone(&watched));
        let waiter = Waiter::of(&watched, role, table.is_at_risk(key));
        drop(table);
        self.shared.filled.notify_one();
        tokio::spawn(self.clone().follow(watched, heard));
        Ok(waiter)
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

    /// Re-reads all awaited executions at intervals, while there are any.
    async fn repair(self) {
        let mut reconnects = self.shared.bus.reconnects();
        let mut pause = REPAIR;
        loop {
            while self.shared.table.lock().watched.is_empty() {
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
            .table
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
        let stored = self.shared.bus.stream(stream::ACTIONS).last_of_many(&subjects).await?;
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
        if let Some((sequence, record)) = self.shared.bus.records().latest(&watched.key).await? {
            watched.learn(sequence, record);
        } else {
            warn!(execution = %watched.key, "an awaited execution is no longer stored");
            watched.known.send_modify(|known| known.lost = true);
        }
        Ok(())
    }
}
