//! The actions held by an executor: running ones, and a few more that wait for room.

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

/// How long an action claimed ahead may wait here before it is returned for other executors.
const AHEAD_PATIENCE: Duration = Duration::from_secs(1);

/// The actions held by the executor, with notifications of changes.
#[derive(Debug)]
pub(crate) struct Hands {
    state: Mutex<State>,
    /// Notified when there is room that was not yet offered to the schedulers.
    pub(crate) room: Notify,
    /// Notified when the state changed in a way that schedulers must learn at once.
    pub(crate) announce: Notify,
    changed: Notify,
}

impl Hands {
    /// Holds nothing yet. At most `starting_max` actions fetch their inputs at a time; 0 means no limit.
    pub(crate) fn new(room: Room, starting_max: u16) -> Self {
        let state = Mutex::new(State::new(room, starting_max));
        Self { state, room: Notify::new(), announce: Notify::new(), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a claimed action; `fetch` starts to fetch its inputs if they are remote. Returns the action while
    /// draining. An action that is already held is left as it is.
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

    /// Starts all waiting actions that fit; they hold their room from now on.
    pub(crate) fn start(&self) -> Vec<Work> {
        self.lock().start()
    }

    /// Frees the room of an action that has left its slot. Returns the actions that start in its place.
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

    /// Forgets an action after its end was written.
    pub(crate) fn release(&self, key: &ExecutionKey, hand: &Hand) {
        self.lock().release(key, hand);
        self.changed.notify_waiters();
    }

    /// Records that the command runs and where its outputs are written.
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

    /// Records the duration of a fetch of remote inputs.
    pub(crate) fn fetched(&self, took: Duration) {
        self.lock().pace.fetched(took);
    }

    /// The request to the schedulers; `None` if there is no room.
    pub(crate) fn wish(&self) -> Option<Wish> {
        self.lock().wish(Instant::now())
    }

    /// Whether the executor holds this action.
    pub(crate) fn has(&self, key: &ExecutionKey) -> bool {
        self.lock().held.contains_key(key)
    }

    /// The phase of the action, if it is held.
    pub(crate) fn phase(&self, key: &ExecutionKey) -> Option<Phase> {
        self.lock().held.get(key).map(|held| held.phase.clone())
    }

    /// The keys of all held actions.
    pub(crate) fn keys(&self) -> Vec<ExecutionKey> {
        self.lock().held.keys().cloned().collect()
    }

    /// Kills the action `key`, if it is held.
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

    /// Kills all held actions.
    pub(crate) fn stop_all(&self) {
        let mut state = self.lock();
        state.held.values().for_each(|held| held.hand.stop.cancel());
        state.put_down(|_| true);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Removes all actions that wait for room, and returns their keys.
    pub(crate) fn put_down_waiting(&self) -> Vec<ExecutionKey> {
        let down = self.lock().put_down(|_| true);
        self.changed.notify_waiters();
        down
    }

    /// Removes actions that were claimed ahead and have waited for too long, and returns their keys.
    pub(crate) fn put_down_stuck(&self) -> Vec<ExecutionKey> {
        let down = self.lock().put_down(|it| it.since.elapsed() > AHEAD_PATIENCE);
        self.changed.notify_waiters();
        down
    }

    /// Whether work is accepted, if the congestion window admits it.
    pub(crate) fn status(&self) -> ExecutorStatus {
        let state = self.lock();
        match (state.draining, state.room.is_closed()) {
            (true, _) => ExecutorStatus::Draining,
            (false, true) => ExecutorStatus::Closed,
            (false, false) => ExecutorStatus::Ready,
        }
    }

    /// Stops accepting work, or accepts it again.
    pub(crate) fn set_draining(&self, draining: bool) {
        self.lock().draining = draining;
        self.announce.notify_one();
        self.room.notify_one();
    }

    /// Applies the readings of the sensors; see [`Room::look`]. Returns the actions that start in freed room, and
    /// whether the window is open.
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

    /// Number of actions whose inputs are being prepared.
    pub(crate) fn starting(&self) -> u16 {
        self.lock().starting()
    }

    /// The load of the executor.
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

    /// Whether the sensors must be read: something is held, or a resource was short.
    fn is_watchful(&self) -> bool {
        let state = self.lock();
        !state.held.is_empty() || state.room.is_short() || state.room.is_closed()
    }

    /// Waits until nothing is held.
    pub(crate) async fn all_done(&self) {
        self.until(|| self.lock().held.is_empty()).await;
    }

    /// Waits until the sensors must be read.
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

    /// Waits for a change of the held actions.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests;
