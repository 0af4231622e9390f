//! The actions held by an executor: running ones, and a few more that wait for room.

mod state;

use std::time::{Duration, Instant};

use model::{Claimed, Execution, ExecutionKey, ExecutorStatus, Resources, Room};
use parking_lot::Mutex;
use policy::Signal;
use tokio::{sync::Notify, task::JoinHandle};

use self::state::{Accepted, State};
pub(crate) use self::state::{ActionHandle, ExecutorLoad, Outputs, Phase, Work};
use crate::{
    allocation::Allocation,
    needed_images::{ActionImages, NeededImages},
};

/// How long an action claimed ahead may wait here before it is returned for other executors.
const AHEAD_PATIENCE: Duration = Duration::from_secs(1);

/// The actions held by the executor, with notifications of changes.
#[derive(Debug)]
pub(crate) struct HeldActions {
    state: Mutex<State>,
    /// Notified when the room changed and no record or heartbeat reports that.
    pub(crate) room_changed: Notify,
    /// Notified when the state changed in a way that schedulers must learn at once.
    pub(crate) announce: Notify,
    changed: Notify,
}

/// What becomes of claimed actions that are not simply held.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Those whose images must be fetched now.
    pub(crate) fetching: Vec<(Execution, ActionHandle)>,
    /// Those that are not accepted.
    pub(crate) refused: Vec<ExecutionKey>,
}

impl HeldActions {
    /// Holds nothing yet. At most `starting_max` actions fetch their inputs at a time; 0 means no limit.
    pub(crate) fn new(allocation: Allocation, starting_max: u16) -> Self {
        let state = Mutex::new(State::new(allocation, starting_max));
        Self { state, room_changed: Notify::new(), announce: Notify::new(), changed: Notify::new() }
    }

    /// Accepts claimed actions up to grant `number`; `images` says what one needs of images, and `fetch` starts to fetch its
    /// inputs if they are remote. All are refused while draining, and those whose images must be fetched while too many wait
    /// for that. An action that is already held is left as it is.
    pub(crate) fn accept_all(
        &self,
        number: u64,
        all: Vec<Claimed>,
        images: impl Fn(&Claimed) -> NeededImages,
        fetch: impl Fn(&Claimed, &ActionHandle) -> Option<JoinHandle<Duration>>,
    ) -> Answers {
        let mut answers = Answers::default();
        let mut state = self.state.lock();
        state.note_granted(number);
        if state.draining {
            answers.refused = all.iter().map(|claimed| claimed.record.execution.key()).collect();
            return answers;
        }
        for claimed in all {
            match state.accept(claimed, &images, &fetch) {
                Accepted::Held => {}
                Accepted::Fetching(execution, handle) => answers.fetching.push((*execution, handle)),
                Accepted::Refused(key) => answers.refused.push(key),
            }
        }
        drop(state);
        if !answers.fetching.is_empty() {
            // They hold no room, which the schedulers do not know yet.
            self.room_changed.notify_one();
        }
        self.changed.notify_waiters();
        answers
    }

    /// Lets an action whose images are here now wait for room. Returns the actions that start.
    pub(crate) fn images_here(
        &self,
        handle: &ActionHandle,
        images: (ActionImages, Duration),
        fetch: impl Fn(&Claimed, &ActionHandle) -> Option<JoinHandle<Duration>>,
    ) -> Vec<Work> {
        let mut state = self.state.lock();
        state.images_here(handle, images, &fetch);
        let begin = state.start();
        drop(state);
        self.room_changed.notify_one();
        self.changed.notify_waiters();
        begin
    }

    /// Removes an action whose images cannot be fetched, so that its end can be written. `None` if that is not wanted.
    pub(crate) fn images_failed(&self, handle: &ActionHandle) -> Option<Work> {
        let failed = self.state.lock().images_failed(handle);
        self.room_changed.notify_one();
        self.changed.notify_waiters();
        failed
    }

    /// Notes that grants up to `number` were sent to this executor.
    pub(crate) fn note_granted(&self, number: u64) {
        self.state.lock().note_granted(number);
    }

    /// The room for more actions, as a new report.
    pub(crate) fn room(&self) -> Room {
        self.state.lock().room(Instant::now())
    }

    /// Whether nothing starts now, because a resource is short.
    pub(crate) fn is_shut(&self) -> bool {
        self.state.lock().allocation.is_shut()
    }

    /// Starts all waiting actions that fit; they hold their room from now on.
    pub(crate) fn start(&self) -> Vec<Work> {
        self.state.lock().start()
    }

    /// Frees the room of an action that has left its slot; the record of its end reports the room. Returns the actions
    /// that start in its place.
    pub(crate) fn leave_slot(
        &self,
        key: &ExecutionKey,
        handle: &ActionHandle,
        size: &Resources,
    ) -> Vec<Work> {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.allocation.end(size);
        state.completion_rate.ended(now);
        state.enter(key, handle, Phase::Finishing);
        let begin = state.start();
        drop(state);
        self.changed.notify_waiters();
        begin
    }

    /// Frees the room of an action that runs services for others, which are ready. Returns the actions that start in its place.
    pub(crate) fn serve(&self, key: &ExecutionKey, handle: &ActionHandle, size: &Resources) -> Vec<Work> {
        let mut state = self.state.lock();
        state.allocation.end(size);
        state.enter(key, handle, Phase::Serving);
        let begin = state.start();
        drop(state);
        self.room_changed.notify_one();
        self.changed.notify_waiters();
        begin
    }

    /// Notes that the services of an action have ended which held no room.
    pub(crate) fn end_serving(&self, key: &ExecutionKey, handle: &ActionHandle) {
        self.state.lock().enter(key, handle, Phase::Finishing);
        self.changed.notify_waiters();
    }

    /// Forgets an action after its end was written.
    pub(crate) fn release(&self, key: &ExecutionKey, handle: &ActionHandle) {
        self.state.lock().release(key, handle);
        self.changed.notify_waiters();
    }

    /// Records that the command runs and where its outputs are written.
    pub(crate) fn set_outputs(&self, key: &ExecutionKey, handle: &ActionHandle, outputs: Outputs) {
        let mut state = self.state.lock();
        let before = state.starting();
        state.enter(key, handle, Phase::Running(outputs));
        let has_changed = state.starting() < before && state.limits_starting();
        drop(state);
        if has_changed {
            self.room_changed.notify_one();
        }
        self.changed.notify_waiters();
    }

    /// Records the duration of a fetch of remote inputs.
    pub(crate) fn fetched(&self, took: Duration) {
        self.state.lock().completion_rate.fetched(took);
    }

    /// Whether the executor holds this action.
    pub(crate) fn has(&self, key: &ExecutionKey) -> bool {
        self.state.lock().held.contains_key(key)
    }

    /// The phase of the action, if it is held.
    pub(crate) fn phase(&self, key: &ExecutionKey) -> Option<Phase> {
        self.state.lock().held.get(key).map(|held| held.phase.clone())
    }

    /// The keys of all held actions.
    pub(crate) fn keys(&self) -> Vec<ExecutionKey> {
        self.state.lock().held.keys().cloned().collect()
    }

    /// Kills the action `key`, if it is held.
    pub(crate) fn stop(&self, key: &ExecutionKey) {
        let mut state = self.state.lock();
        if let Some(held) = state.held.get(key) {
            held.handle.stop.cancel();
        }
        state.remove_not_started(|work| work.key() == *key);
        drop(state);
        self.changed.notify_waiters();
        self.room_changed.notify_one();
    }

    /// Kills all held actions.
    pub(crate) fn stop_all(&self) {
        let mut state = self.state.lock();
        state.held.values().for_each(|held| held.handle.stop.cancel());
        state.remove_not_started(|_| true);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Removes all actions that have not started, and returns their keys.
    pub(crate) fn remove_all_waiting(&self) -> Vec<ExecutionKey> {
        let down = self.state.lock().remove_not_started(|_| true);
        self.changed.notify_waiters();
        down
    }

    /// Removes actions that were claimed ahead and have waited for too long, and returns their keys.
    pub(crate) fn remove_stuck(&self) -> Vec<ExecutionKey> {
        let down = self.state.lock().remove_waiting(|it| it.since.elapsed() > AHEAD_PATIENCE);
        self.changed.notify_waiters();
        down
    }

    /// Whether work is accepted, if the congestion window admits it.
    pub(crate) fn status(&self) -> ExecutorStatus {
        let state = self.state.lock();
        match (state.draining, state.allocation.is_closed()) {
            (true, _) => ExecutorStatus::Draining,
            (false, true) => ExecutorStatus::Closed,
            (false, false) => ExecutorStatus::Ready,
        }
    }

    /// Stops accepting work, or accepts it again.
    pub(crate) fn set_draining(&self, draining: bool) {
        self.state.lock().draining = draining;
        self.announce.notify_one();
        self.changed.notify_waiters();
    }

    /// Waits until no work is accepted any more.
    pub(crate) async fn until_draining(&self) {
        self.until(|| self.state.lock().draining).await;
    }

    /// Applies the readings of the sensors; see [`Allocation::apply_readings`]. Returns the actions that start in freed
    /// room, and whether the window is open.
    pub(crate) fn apply_readings(
        &self,
        signals: &[Signal],
        red: Vec<String>,
        shut: bool,
    ) -> (Vec<Work>, bool) {
        let mut state = self.state.lock();
        let starts = |state: &State| state.free().map_or(0, |free| free.starts);
        let before = starts(&state);
        state.allocation.apply_readings(signals, red, shut);
        let begin = state.start();
        let is_open = !state.allocation.is_closed();
        let has_changed = starts(&state) != before;
        drop(state);
        if has_changed {
            self.room_changed.notify_one();
        }
        self.changed.notify_waiters();
        (begin, is_open)
    }

    /// Number of actions whose inputs are being prepared.
    pub(crate) fn starting(&self) -> u16 {
        self.state.lock().starting()
    }

    /// The load of the executor.
    pub(crate) fn load(&self) -> ExecutorLoad {
        let state = self.state.lock();
        let allocation = &state.allocation;
        ExecutorLoad {
            slots: allocation.slots(),
            capacity: allocation.capacity().clone(),
            held: allocation.held().clone(),
            window: allocation.window(),
        }
    }

    /// Whether the sensors must be read: something is held, or a resource was short.
    fn needs_readings(&self) -> bool {
        let state = self.state.lock();
        !state.held.is_empty() || state.allocation.is_short() || state.allocation.is_closed()
    }

    /// Whether any action is held.
    pub(crate) fn holds_any(&self) -> bool {
        !self.state.lock().held.is_empty()
    }

    /// Waits until nothing is held.
    pub(crate) async fn all_done(&self) {
        self.until(|| self.state.lock().held.is_empty()).await;
    }

    /// Waits until the sensors must be read.
    pub(crate) async fn until_readings_needed(&self) {
        self.until(|| self.needs_readings()).await;
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
