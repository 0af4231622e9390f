//! What happened to the actions of a run: when each was accepted and when its grant arrived.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use model::ExecutionId;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot, watch};

use crate::{error::BenchError, statistics::Percentiles};

/// Time without a grant after which a run has failed.
const STALLED: Duration = Duration::from_secs(60);

/// The actions of a run, shared by those that accept and those that run them.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Places for actions that are accepted and not finished.
    places: Semaphore,
    actions: Mutex<Actions>,
    granted: watch::Sender<u64>,
    ended: watch::Sender<u64>,
    /// Number of grants of executions that were granted before.
    repeated: AtomicU64,
    /// Number of grants without a free slot.
    beyond: AtomicU64,
    /// Number of requests of schedulers for the room of one executor.
    asked: AtomicU64,
    /// Number of orders of schedulers to cancel an action.
    cancelled: AtomicU64,
}

/// Latency of grants, and messages that a farm without faults does not send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tally {
    /// Milliseconds from acceptance to the arrival of the grant.
    pub(crate) latency: Percentiles,
    /// Number of grants of executions that were running already.
    pub(crate) repeated: u64,
    /// Number of grants for which an executor had no free slot.
    pub(crate) beyond: u64,
    /// Number of requests of schedulers for the room of one executor.
    pub(crate) asked: u64,
    /// Number of orders of schedulers to cancel an action.
    pub(crate) cancelled: u64,
}

#[derive(Debug, Default)]
struct Actions {
    /// Times of acceptance of actions that are not granted.
    accepted: HashMap<ExecutionId, Instant>,
    /// Actions that are granted and not finished.
    running: HashSet<ExecutionId>,
    /// Milliseconds from acceptance to the arrival of the grant of each action.
    latencies: Vec<(ExecutionId, f64)>,
    /// Where the time of the grant of an action is reported.
    watched: HashMap<ExecutionId, oneshot::Sender<Instant>>,
}

impl Ledger {
    /// A ledger with places for `in_flight` actions at a time.
    pub(crate) fn new(in_flight: usize) -> Self {
        Self {
            places: Semaphore::new(in_flight),
            actions: Mutex::default(),
            granted: watch::Sender::new(0),
            ended: watch::Sender::new(0),
            repeated: AtomicU64::new(0),
            beyond: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
        }
    }

    /// Waits for a place for another action and occupies it.
    pub(crate) async fn place(&self) {
        // The semaphore is never closed, so this cannot fail.
        if let Ok(place) = self.places.acquire().await {
            place.forget();
        }
    }

    /// Notes that the record of an action is written now.
    pub(crate) fn accepted(&self, id: ExecutionId) {
        self.actions.lock().accepted.insert(id, Instant::now());
    }

    /// Reports when an action is granted that is not accepted yet.
    pub(crate) fn grant_of(&self, id: ExecutionId) -> oneshot::Receiver<Instant> {
        let (sender, receiver) = oneshot::channel();
        self.actions.lock().watched.insert(id, sender);
        receiver
    }

    /// Notes that a grant of these actions arrived.
    pub(crate) fn granted(&self, ids: impl Iterator<Item = ExecutionId>) {
        let (now, mut new, mut repeated) = (Instant::now(), 0, 0);
        let mut actions = self.actions.lock();
        for id in ids {
            if actions.running.insert(id) {
                new += 1;
            } else {
                repeated += 1;
            }
            if let Some(watched) = actions.watched.remove(&id) {
                // The receiver may have given up.
                let _ = watched.send(now);
            }
            if let Some(at) = actions.accepted.remove(&id) {
                actions.latencies.push((id, now.duration_since(at).as_secs_f64() * 1000.0));
            }
        }
        drop(actions);
        self.repeated.fetch_add(repeated, Ordering::Relaxed);
        self.granted.send_modify(|granted| *granted += new);
    }

    /// Notes that an action ended, which frees a place.
    pub(crate) fn finished(&self, id: &ExecutionId) {
        if self.actions.lock().running.remove(id) {
            self.places.add_permits(1);
            self.ended.send_modify(|ended| *ended += 1);
        }
    }

    /// Notes `count` grants without a free slot.
    pub(crate) fn beyond(&self, count: u64) {
        self.beyond.fetch_add(count, Ordering::Relaxed);
    }

    /// Notes that a scheduler asked an executor for its room.
    pub(crate) fn asked(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a scheduler ordered an executor to cancel an action.
    pub(crate) fn cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of granted actions so far.
    pub(crate) fn count(&self) -> u64 {
        *self.granted.borrow()
    }

    /// Waits until `count` actions are granted; fails if none is for a minute.
    pub(crate) async fn until(&self, count: u64) -> Result<(), BenchError> {
        let mut granted = self.granted.subscribe();
        loop {
            let now = *granted.borrow_and_update();
            if now >= count {
                return Ok(());
            }
            // The sender lives as long as the ledger, so only the time can run out.
            if tokio::time::timeout(STALLED, granted.changed()).await.is_err() {
                return Err(BenchError::plain(format!("{now} of {count} actions were granted, then none")));
            }
        }
    }

    /// Waits until `count` actions have ended, however long that takes.
    pub(crate) async fn until_ended(&self, count: u64) {
        // The sender lives as long as the ledger, so this cannot fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended >= count).await;
    }

    /// Milliseconds from acceptance to the arrival of the grant of each action that was granted.
    pub(crate) fn waits(&self) -> HashMap<ExecutionId, f64> {
        self.actions.lock().latencies.iter().copied().collect()
    }

    /// Forgets the latencies and counts so far.
    pub(crate) fn begin(&self) {
        self.actions.lock().latencies.clear();
        for count in [&self.repeated, &self.beyond, &self.asked, &self.cancelled] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// What was noted since [`Ledger::begin`].
    pub(crate) fn tally(&self) -> Tally {
        let mut latencies: Vec<f64> = self.actions.lock().latencies.iter().map(|(_, wait)| *wait).collect();
        Tally {
            latency: Percentiles::of(&mut latencies),
            repeated: self.repeated.load(Ordering::Relaxed),
            beyond: self.beyond.load(Ordering::Relaxed),
            asked: self.asked.load(Ordering::Relaxed),
            cancelled: self.cancelled.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_action_is_counted_once_and_its_end_frees_a_place() {
        let ledger = Ledger::new(1);
        let id = ExecutionId::generate();
        ledger.place().await;
        let granted = ledger.grant_of(id);
        ledger.accepted(id);
        ledger.granted([id, id].into_iter());
        ledger.until(1).await.unwrap();
        assert!(granted.await.unwrap() <= Instant::now());
        let tally = ledger.tally();
        assert_eq!((ledger.count(), tally.repeated), (1, 1));
        assert!(tally.latency.p50 >= 0.0);
        assert_eq!(ledger.places.available_permits(), 0);
        ledger.finished(&id);
        ledger.finished(&id);
        ledger.until_ended(1).await;
        assert_eq!(ledger.places.available_permits(), 1);
        assert_eq!(ledger.waits().into_keys().collect::<Vec<_>>(), [id]);
        ledger.begin();
        assert_eq!((ledger.count(), ledger.tally().repeated), (1, 0));
    }
}
