//! What the executor has in hand: actions that run, and a few more that wait for room.

mod state;

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use model::{Claimed, ExecutionKey, ExecutorStatus, Resources};
use policy::actions::Signal;
use tokio::{sync::Notify, task::JoinHandle};

use self::state::State;
pub(crate) use self::state::{Fullness, Hand, Outputs, Phase, Wish, Work};
use crate::room::Room;

/// So long an action waits in hand that was taken ahead; then others may have it.
const AHEAD_PATIENCE: Duration = Duration::from_secs(1);

/// All of them.
#[derive(Debug)]
pub(crate) struct Hands {
    state: Mutex<State>,
    /// There is room that nobody was asked to fill.
    pub(crate) room: Notify,
    /// Something that the schedulers do not know: say it now.
    pub(crate) announce: Notify,
    changed: Notify,
}

impl Hands {
    /// Nothing in hand. `starting_max` actions may fetch their inputs at a time; 0 is any number.
    pub(crate) fn new(room: Room, starting_max: u16) -> Self {
        let state = Mutex::new(State::new(room, starting_max));
        Self { state, room: Notify::new(), announce: Notify::new(), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in hand what was claimed; `fetch` begins to fetch its inputs where they are afar. It comes back while nothing is
    /// taken any more. What is in hand already stays as it is.
    pub(crate) fn take(
        &self,
        claimed: Claimed,
        fetch: impl FnOnce(&Claimed, &Hand) -> Option<JoinHandle<Duration>>,
    ) -> Result<(), Box<Claimed>> {
        let mut state = self.lock();
        if state.draining {
            return Err(Box::new(claimed));
        }
        state.take(claimed, fetch);
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }

    /// All that wait and can begin now, which hold their room from now on.
    pub(crate) fn start(&self) -> Vec<Work> {
        self.lock().start()
    }

    /// Its job has left its slot: what it held is free. Returns what begins in its place.
    pub(crate) fn left(&self, key: &ExecutionKey, hand: &Hand, size: &Resources) -> Vec<Work> {
        let now = Instant::now();
        let mut state = self.lock();
        state.room.end(size);
        state.pace.ended(now);
        state.enter(key, hand, Phase::Finishing);
        let begin = state.start();
        let ask = state.wish(now).is_some();
        drop(state);
        if ask {
            self.room.notify_one();
        }
        self.changed.notify_waiters();
        begin
    }

    /// It is done with.
    pub(crate) fn release(&self, key: &ExecutionKey, hand: &Hand) {
        self.lock().release(key, hand);
        self.changed.notify_waiters();
    }

    /// Its command runs and writes here.
    pub(crate) fn set_outputs(&self, key: &ExecutionKey, hand: &Hand, outputs: Outputs) {
        let mut state = self.lock();
        let before = state.starting();
        state.enter(key, hand, Phase::Running(outputs));
        let ask = state.starting() < before && state.limits_starting();
        drop(state);
        if ask {
            self.room.notify_one();
        }
        self.changed.notify_waiters();
    }

    /// Inputs were fetched from afar in so much time.
    pub(crate) fn fetched(&self, took: Duration) {
        self.lock().pace.fetched(took);
    }

    /// What to ask the schedulers for; `None` when there is no room.
    pub(crate) fn wish(&self) -> Option<Wish> {
        self.lock().wish(Instant::now())
    }

    /// Whether it is in hand.
    pub(crate) fn has(&self, key: &ExecutionKey) -> bool {
        self.lock().held.contains_key(key)
    }

    /// How far it has come, if it is in hand.
    pub(crate) fn phase(&self, key: &ExecutionKey) -> Option<Phase> {
        self.lock().held.get(key).map(|held| held.phase.clone())
    }

    /// Everything in hand.
    pub(crate) fn keys(&self) -> Vec<ExecutionKey> {
        self.lock().held.keys().cloned().collect()
    }

    /// Kills one.
    pub(crate) fn stop(&self, key: &ExecutionKey) {
        let mut state = self.lock();
        if let Some(held) = state.held.get(key) {
            held.hand.stop.cancel();
        }
        state.put_down(|it| it.work.key() == *key);
        drop(state);
        self.changed.notify_waiters();
        self.room.notify_one();
    }

    /// Kills all.
    pub(crate) fn stop_all(&self) {
        let mut state = self.lock();
        state.held.values().for_each(|held| held.hand.stop.cancel());
        state.put_down(|_| true);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Puts down all that wait for room, and tells which.
    pub(crate) fn put_down_waiting(&self) -> Vec<ExecutionKey> {
        let down = self.lock().put_down(|_| true);
        self.changed.notify_waiters();
        down
    }

    /// Puts down those that were taken ahead and still wait though they were to begin long ago, and tells which.
    pub(crate) fn put_down_stuck(&self) -> Vec<ExecutionKey> {
        let down = self.lock().put_down(|it| it.since.elapsed() > AHEAD_PATIENCE);
        self.changed.notify_waiters();
        down
    }

    /// Whether work is taken, where the window lets it in.
    pub(crate) fn status(&self) -> ExecutorStatus {
        let state = self.lock();
        match (state.draining, state.room.is_closed()) {
            (true, _) => ExecutorStatus::Draining,
            (false, true) => ExecutorStatus::Closed,
            (false, false) => ExecutorStatus::Ready,
        }
    }

    /// Takes nothing, or takes work again.
    pub(crate) fn set_draining(&self, draining: bool) {
        self.lock().draining = draining;
        self.announce.notify_one();
        self.room.notify_one();
    }

    /// Takes note of what the sensors say; see [`Room::look`]. Returns what begins where there is room again, and whether
    /// the window is open.
    pub(crate) fn look(&self, signals: &[Signal], red: Vec<String>, shut: bool) -> (Vec<Work>, bool) {
        let mut state = self.lock();
        let starts = |state: &State| state.free().map_or(0, |free| free.starts);
        let before = starts(&state);
        state.room.look(signals, red, shut);
        let begin = state.start();
        let is_open = !state.room.is_closed();
        let ask = starts(&state) > before;
        drop(state);
        if ask {
            self.room.notify_one();
        }
        self.changed.notify_waiters();
        (begin, is_open)
    }

    /// Actions whose inputs are made ready.
    pub(crate) fn starting(&self) -> u16 {
        self.lock().starting()
    }

    /// How full it is.
    pub(crate) fn fullness(&self) -> Fullness {
        let state = self.lock();
        let room = &state.room;
        Fullness {
            slots: room.slots(),
            capacity: room.capacity().clone(),
            held: room.held().clone(),
            window: room.window(),
        }
    }

    /// Whether the sensors have to be looked at: something is in hand, or something was short.
    fn is_watchful(&self) -> bool {
        let state = self.lock();
        !state.held.is_empty() || state.room.is_short() || state.room.is_closed()
    }

    /// Returns when nothing is in hand.
    pub(crate) async fn all_done(&self) {
        self.until(|| self.lock().held.is_empty()).await;
    }

    /// Returns when the sensors have to be looked at.
    pub(crate) async fn watchful(&self) {
        self.until(|| self.is_watchful()).await;
    }

    async fn until(&self, is_so: impl Fn() -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if is_so() {
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
mod tests;
