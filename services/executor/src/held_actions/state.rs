//! The state of the held actions, and its transitions.

use std::{
    collections::{HashMap, VecDeque},
    path::PathBuf,
    time::{Duration, Instant},
};

use invariant::impossible;
use model::{ActionKey, Claimed, Execution, ExecutionKey, FetchRoom, Resources, Room, WindowState};
use policy::actions::{fetch_room, takes_images};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    allocation::{Allocation, Demand, FreeRoom},
    completion_rate::CompletionRate,
    needed_images::{ActionImages, NeededImages},
};

/// The handle of one held action. An action that is claimed again while its previous end is being
/// written gets another handle.
#[derive(Debug, Clone)]
pub(crate) struct ActionHandle {
    /// Cancelled when its processes must die and its result is not wanted.
    pub(crate) stop: CancellationToken,
    number: u64,
}

/// An action that can start.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) claimed: Box<Claimed>,
    pub(crate) handle: ActionHandle,
    pub(crate) images: ActionImages,
    /// How long its images were fetched.
    pub(crate) images_took: Duration,
    /// The fetch of its remote inputs, if one was started; yields the duration of the fetch.
    pub(crate) fetching: Option<JoinHandle<Duration>>,
}

impl Work {
    /// An action whose images and inputs are here, or are fetched later.
    fn new(claimed: Claimed, handle: ActionHandle) -> Self {
        let (claimed, images) = (Box::new(claimed), ActionImages::default());
        Self { claimed, handle, images, images_took: Duration::ZERO, fetching: None }
    }

    pub(crate) fn key(&self) -> ExecutionKey {
        self.claimed.record.execution.key()
    }

    fn exclusive(&self) -> bool {
        self.claimed.record.execution.needs.exclusive
    }

    fn is_emergency(&self) -> bool {
        self.claimed.record.urgency().band.is_emergency()
    }
}

/// The files that a running command writes to.
#[derive(Debug, Clone)]
pub(crate) struct Outputs {
    pub(crate) stdout: PathBuf,
    pub(crate) stderr: PathBuf,
}

/// The phase of a held action.
#[derive(Debug, Clone)]
pub(crate) enum Phase {
    /// Its images are fetched; it holds no room.
    Fetching,
    /// It waits for free room.
    Waiting,
    /// Its inputs are being prepared.
    Starting,
    /// Its command runs and writes these files.
    Running(Outputs),
    /// Its services run for other actions; it holds no room.
    Serving,
    /// It has left its slot, and only its end must still be written.
    Finishing,
}

/// The load of an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExecutorLoad {
    /// Maximum number of simultaneous actions.
    pub(crate) slots: u16,
    /// Total resources of the executor.
    pub(crate) capacity: Resources,
    /// Resources held by running actions.
    pub(crate) held: Resources,
    /// State of the congestion window.
    pub(crate) window: WindowState,
}

/// The held actions and their room.
#[derive(Debug)]
pub(super) struct State {
    pub(super) held: HashMap<ExecutionKey, Held>,
    /// Those whose images are fetched.
    pub(super) fetching: Vec<Fetching>,
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) allocation: Allocation,
    pub(super) completion_rate: CompletionRate,
    pub(super) draining: bool,
    starting: u16,
    starting_max: u16,
    count: u64,
    /// Number of the last grant that was received.
    granted: u64,
    /// Number of the last report of room.
    report: u64,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) handle: ActionHandle,
    pub(super) phase: Phase,
}

/// An action whose images are fetched.
#[derive(Debug)]
pub(super) struct Fetching {
    work: Work,
    /// The registry that it waits for; `None` if its images were unpacked here.
    registry: Option<ActionKey>,
}

/// What becomes of a claimed action.
pub(super) enum Accepted {
    /// It is held, or was before.
    Held,
    /// It is held when its images have been fetched.
    Fetching(Box<Execution>, ActionHandle),
    /// Its images cannot be fetched now.
    Refused(ExecutionKey),
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) work: Work,
    pub(super) since: Instant,
}

impl State {
    /// Holds nothing yet. At most `starting_max` actions fetch their inputs at a time; 0 means no limit.
    pub(super) fn new(allocation: Allocation, starting_max: u16) -> Self {
        Self {
            held: HashMap::new(),
            fetching: Vec::new(),
            waiting: VecDeque::new(),
            allocation,
            completion_rate: CompletionRate::new(Instant::now()),
            draining: false,
            starting: 0,
            starting_max,
            count: 0,
            granted: 0,
            report: 0,
        }
    }

    /// Accepts an action unless it is held already; one whose end is only being written does not count as held.
    pub(super) fn accept(
        &mut self,
        claimed: Claimed,
        images: &impl Fn(&Claimed) -> NeededImages,
        fetch: &impl Fn(&Claimed, &ActionHandle) -> Option<JoinHandle<Duration>>,
    ) -> Accepted {
        let key = claimed.record.execution.key();
        if self.held.get(&key).is_some_and(|held| !matches!(held.phase, Phase::Finishing)) {
            return Accepted::Held;
        }
        let needed = images(&claimed);
        if let NeededImages::Missing { demand, unpacked } = &needed
            && !takes_images(demand, *unpacked, self.fetch_room().as_ref())
        {
            return Accepted::Refused(key);
        }
        self.count += 1;
        let handle = ActionHandle { stop: CancellationToken::new(), number: self.count };
        let mut work = Work::new(claimed, handle.clone());
        match needed {
            NeededImages::Here(images) => {
                work.fetching = fetch(&work.claimed, &handle);
                work.images = images;
                self.wait(work);
                self.held.insert(key, Held { handle, phase: Phase::Waiting });
                Accepted::Held
            }
            NeededImages::Missing { demand, unpacked } => {
                let execution = Box::new(work.claimed.record.execution.clone());
                self.fetching.push(Fetching { work, registry: (!unpacked).then_some(demand.registry) });
                self.held.insert(key, Held { handle: handle.clone(), phase: Phase::Fetching });
                Accepted::Fetching(execution, handle)
            }
        }
    }

    /// Lets an action whose images are here wait for room.
    pub(super) fn images_here(
        &mut self,
        handle: &ActionHandle,
        (images, took): (ActionImages, Duration),
        fetch: &impl Fn(&Claimed, &ActionHandle) -> Option<JoinHandle<Duration>>,
    ) {
        let Some(mut work) = self.take_fetching(handle) else { return };
        (work.images, work.images_took) = (images, took);
        work.fetching = fetch(&work.claimed, &work.handle);
        self.enter(&work.key(), handle, Phase::Waiting);
        self.wait(work);
    }

    /// Removes an action whose images cannot be fetched. `None` if it is stopped, or was returned.
    pub(super) fn images_failed(&mut self, handle: &ActionHandle) -> Option<Work> {
        let work = self.take_fetching(handle)?;
        self.enter(&work.key(), handle, Phase::Finishing);
        Some(work)
    }

    fn take_fetching(&mut self, handle: &ActionHandle) -> Option<Work> {
        let at = self.fetching.iter().position(|it| it.work.handle.number == handle.number)?;
        Some(self.fetching.swap_remove(at).work)
    }

    /// Room for actions whose images must be fetched.
    fn fetch_room(&self) -> Option<FetchRoom> {
        fetch_room(self.allocation.slots(), self.fetching.iter().filter_map(|it| it.registry))
    }

    fn wait(&mut self, work: Work) {
        // Emergencies go before what was claimed ahead.
        let emergencies = self.waiting.iter().take_while(|it| it.work.is_emergency()).count();
        let at = if work.is_emergency() { emergencies } else { self.waiting.len() };
        self.waiting.insert(at, Waiting { work, since: Instant::now() });
    }

    /// Starts all waiting actions that fit; they hold their room from now on.
    pub(super) fn start(&mut self) -> Vec<Work> {
        let mut begin = Vec::new();
        while let Some(index) = self.allocation.next(self.demands()) {
            let Some(Waiting { work, .. }) = self.waiting.remove(index) else {
                impossible!("no action waits at index {index}");
                break;
            };
            self.allocation.begin(&work.claimed.size, work.exclusive());
            self.starting = self.starting.saturating_add(1);
            self.enter(&work.key(), &work.handle, Phase::Starting);
            begin.push(work);
        }
        begin
    }

    /// Moves an action to another phase.
    pub(super) fn enter(&mut self, key: &ExecutionKey, handle: &ActionHandle, phase: Phase) {
        let Some(held) = self.held.get_mut(key).filter(|held| held.handle.number == handle.number) else {
            impossible!("the action {key} starts or runs, but is not held");
            return;
        };
        if matches!(std::mem::replace(&mut held.phase, phase), Phase::Starting) {
            self.starting = self.starting.saturating_sub(1);
        }
    }

    /// Forgets an action after its end was written.
    pub(super) fn release(&mut self, key: &ExecutionKey, handle: &ActionHandle) {
        if self.held.get(key).is_some_and(|held| held.handle.number == handle.number) {
            self.held.remove(key);
        }
    }

    /// Removes the selected actions that wait for room, and returns their keys.
    pub(super) fn remove_waiting(&mut self, which: impl Fn(&Waiting) -> bool) -> Vec<ExecutionKey> {
        let (down, stay): (VecDeque<_>, _) = std::mem::take(&mut self.waiting).into_iter().partition(which);
        self.waiting = stay;
        down.into_iter().map(|it| self.drop_work(&it.work)).collect()
    }

    /// Removes the selected actions that have not started, whatever they wait for, and returns their keys.
    pub(super) fn remove_not_started(&mut self, which: impl Fn(&Work) -> bool) -> Vec<ExecutionKey> {
        let (down, stay) = std::mem::take(&mut self.fetching).into_iter().partition(|it| which(&it.work));
        self.fetching = stay;
        let down: Vec<Fetching> = down;
        let mut keys: Vec<ExecutionKey> = down.into_iter().map(|it| self.drop_work(&it.work)).collect();
        keys.extend(self.remove_waiting(|it| which(&it.work)));
        keys
    }

    fn drop_work(&mut self, work: &Work) -> ExecutionKey {
        work.handle.stop.cancel();
        let key = work.key();
        self.release(&key, &work.handle);
        key
    }

    /// Number of actions whose inputs are being prepared, in a slot or before.
    pub(super) fn starting(&self) -> u16 {
        let fetches = |it: &&Waiting| it.work.fetching.as_ref().is_some_and(|fetch| !fetch.is_finished());
        let fetching = self.waiting.iter().filter(fetches).count();
        self.starting.saturating_add(u16::try_from(fetching).unwrap_or(u16::MAX))
    }

    /// Whether the number of starting actions is limited.
    pub(super) fn limits_starting(&self) -> bool {
        self.starting_max > 0
    }

    /// The room not needed by waiting actions; see [`Allocation::free`].
    pub(super) fn free(&self) -> Option<FreeRoom> {
        self.allocation.free(self.demands())
    }

    /// Notes that grants up to `number` were sent to this executor.
    pub(super) fn note_granted(&mut self, number: u64) {
        self.granted = self.granted.max(number);
    }

    /// The room for more actions, as a new report.
    pub(super) fn room(&mut self, now: Instant) -> Room {
        self.report += 1;
        let idle = self.waiting.is_empty() && self.allocation.started() == 0;
        let mut room = Room { number: self.report, granted: self.granted, idle, ..Room::default() };
        if !self.draining
            && let Some((free, ahead)) = self.open_room(now)
        {
            (room.free, room.starts, room.kept) = (free.resources, free.starts, free.kept);
            room.ahead = ahead;
            room.fetches = self.fetch_room();
        }
        room
    }

    /// The free room, and the number of further actions to claim ahead. `None` if nothing is accepted.
    fn open_room(&self, now: Instant) -> Option<(FreeRoom, u16)> {
        let mut free = self.free()?;
        let takes_ahead = !self.allocation.is_short() && !self.allocation.is_closed();
        let mut ahead = if takes_ahead { self.ahead(now, free.starts_of_others()) } else { 0 };
        if self.starting_max > 0 {
            let more = self.starting_max.saturating_sub(self.starting());
            free = free.limited(more);
            ahead = ahead.min(more - free.starts);
        }
        Some((free, ahead))
    }

    /// Number of actions to claim ahead. While all slots are busy, half of the waiting ones may start before more are
    /// requested, which saves requests.
    fn ahead(&self, now: Instant, starts: u16) -> u16 {
        let most = self.completion_rate.ahead(now, self.allocation.slots());
        let waiting = u16::try_from(self.waiting.len()).unwrap_or(u16::MAX);
        if starts == 0 && u32::from(waiting) * 2 > u32::from(most) {
            return 0;
        }
        most.saturating_sub(waiting)
    }

    fn demands(&self) -> impl Iterator<Item = Demand<'_>> {
        self.waiting.iter().map(|it| Demand {
            size: &it.work.claimed.size,
            exclusive: it.work.exclusive(),
            emergency: it.work.is_emergency(),
        })
    }
}
