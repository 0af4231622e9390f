//! What the executor has in hand: actions that run, and a few more whose inputs are fetched meanwhile.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use model::{ExecutionKey, ExecutionVerdict, ExecutorStatus};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// One action in hand.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hand {
    /// Cancelled when its processes are to die and its result is wanted by nobody.
    pub(crate) stop: CancellationToken,
    /// Where its command writes, while it runs.
    pub(crate) outputs: Option<Outputs>,
    /// Only its result is still to be written: whoever sees that knows that there is room again.
    finishing: bool,
}

/// The files that a running command writes to.
#[derive(Debug, Clone)]
pub(crate) struct Outputs {
    pub(crate) stdout: PathBuf,
    pub(crate) stderr: PathBuf,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Hands {
    held: Mutex<HashMap<ExecutionKey, Hand>>,
    slots: u16,
    draining: AtomicBool,
    /// Something that the schedulers do not know: say it now.
    pub(crate) announce: Notify,
    changed: Notify,
}

impl Hands {
    /// Nothing in hand, room for what `slots` can run.
    pub(crate) fn new(slots: u16) -> Self {
        Self {
            held: Mutex::default(),
            slots,
            draining: AtomicBool::new(false),
            announce: Notify::new(),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ExecutionKey, Hand>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Actions it runs at a time.
    pub(crate) fn slots(&self) -> u16 {
        self.slots
    }

    /// Actions it takes in hand: as many again as run, so that their inputs are there when a slot is free.
    pub(crate) fn capacity(&self) -> u16 {
        self.slots.saturating_mul(2)
    }

    /// Takes an execution in hand, if there is room. One that is in hand already is taken, not started again.
    pub(crate) fn take(&self, key: &ExecutionKey) -> (ExecutionVerdict, Option<Hand>) {
        if self.is_draining() {
            return (ExecutionVerdict::Busy, None);
        }
        let mut held = self.lock();
        if held.contains_key(key) {
            return (ExecutionVerdict::Taken, None);
        }
        let room = usize::from(self.capacity());
        if held.values().filter(|hand| !hand.finishing).take(room).count() == room {
            drop(held);
            // The schedulers think that there is room.
            self.announce.notify_one();
            return (ExecutionVerdict::Busy, None);
        }
        let hand = Hand::default();
        held.insert(key.clone(), hand.clone());
        (ExecutionVerdict::Taken, Some(hand))
    }

    /// Its outputs are kept and its result is about to be written: it takes no room from now on.
    pub(crate) fn finishing(&self, key: &ExecutionKey) {
        if let Some(hand) = self.lock().get_mut(key) {
            hand.outputs = None;
            hand.finishing = true;
        }
        self.changed.notify_waiters();
    }

    /// It is done with.
    pub(crate) fn release(&self, key: &ExecutionKey) {
        self.lock().remove(key);
        self.changed.notify_waiters();
    }

    /// Its command runs and writes here.
    pub(crate) fn set_outputs(&self, key: &ExecutionKey, outputs: Outputs) {
        if let Some(hand) = self.lock().get_mut(key) {
            hand.outputs = Some(outputs);
        }
        self.changed.notify_waiters();
    }

    /// What is known of an execution in hand.
    pub(crate) fn get(&self, key: &ExecutionKey) -> Option<Hand> {
        self.lock().get(key).cloned()
    }

    /// Everything in hand.
    pub(crate) fn keys(&self) -> Vec<ExecutionKey> {
        self.lock().keys().cloned().collect()
    }

    /// Kills one.
    pub(crate) fn stop(&self, key: &ExecutionKey) {
        if let Some(hand) = self.lock().get(key) {
            hand.stop.cancel();
        }
    }

    /// Kills all.
    pub(crate) fn stop_all(&self) {
        for hand in self.lock().values() {
            hand.stop.cancel();
        }
    }

    /// Whether offers are taken.
    pub(crate) fn status(&self) -> ExecutorStatus {
        if self.is_draining() { ExecutorStatus::Draining } else { ExecutorStatus::Ready }
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Takes no offers, or takes them again.
    pub(crate) fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::Relaxed);
        self.announce.notify_one();
    }

    /// Returns when nothing is in hand.
    pub(crate) async fn all_done(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.lock().is_empty() {
                return;
            }
            changed.await;
        }
    }

    /// Returns when something in hand changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use model::ExecutionId;

    use super::*;

    fn key() -> ExecutionKey {
        ExecutionKey { group: "g".parse().unwrap(), id: ExecutionId::generate() }
    }

    #[test]
    fn a_result_that_is_being_written_takes_no_room() {
        let hands = Hands::new(1);
        let keys = [key(), key(), key(), key()];
        for key in keys.iter().take(2) {
            assert_eq!(hands.take(key).0, ExecutionVerdict::Taken);
        }
        assert_eq!(hands.take(&keys[2]).0, ExecutionVerdict::Busy);
        // Whoever reads the result offers the next one at once, before we know that it was stored.
        hands.finishing(&keys[0]);
        assert_eq!(hands.take(&keys[2]).0, ExecutionVerdict::Taken);
        assert_eq!(hands.take(&keys[3]).0, ExecutionVerdict::Busy);
        // It is still ours: not taken a second time, and named to the schedulers.
        let (verdict, again) = hands.take(&keys[0]);
        assert!(verdict == ExecutionVerdict::Taken && again.is_none());
        assert!(hands.keys().contains(&keys[0]));
    }
}
