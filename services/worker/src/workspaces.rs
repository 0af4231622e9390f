//! The workspaces of a worker: the state of each, and the channels to its loop.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
    time::Instant,
};

use invariant::impossible;
use model::{
    Attempt, BuildKey, BuildRecord, Group, Millis, Offer, OfferVerdict, Sequence, WindowState, WorkerStatus,
    WorkspaceKeys, WorkspaceState,
};
use parking_lot::Mutex;
use policy::{SourceFaults, Window, pause_after_faults};
use sensors::Readings;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    admission::{Admission, MemoryRoom},
    stop::{Cause, Stop},
};

/// A build offered to a workspace.
pub(crate) struct Assignment {
    pub(crate) offer: Offer,
    pub(crate) key: BuildKey,
    /// The record, if it was already read.
    pub(crate) record: Option<(Sequence, BuildRecord)>,
    pub(crate) verdict: oneshot::Sender<OfferVerdict>,
}

/// The reusable state of an idle workspace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Warmth {
    /// Keys that identify the kept files, if any.
    pub(crate) keys: Option<WorkspaceKeys>,
    /// Since when processes of the last build are kept, mainly tool servers; none if there are none.
    pub(crate) tools_since: Option<Instant>,
}

/// The state of a workspace.
pub(crate) enum Phase {
    /// Its shim starts. An offer would wait for the shim while other workspaces take later builds.
    Starting(Warmth),
    Idle(Warmth),
    /// Claims or runs a build.
    Busy {
        key: BuildKey,
        attempt: Attempt,
        stop: Stop,
    },
    /// The build's result is written; the workspace is about to be idle.
    Ending(Warmth),
    /// Its shim does not start: no build can run safely.
    Broken,
}

/// An order to shut down the tool servers of an idle workspace. It is dropped without effect if the
/// workspace is not idle.
pub(crate) struct ShutDown {
    pub(crate) why: &'static str,
    /// Whether to remove its files too.
    pub(crate) files: bool,
    pub(crate) done: oneshot::Sender<()>,
}

/// The receiving ends of a workspace's channels.
pub(crate) struct WorkspaceReceivers {
    pub(crate) offers: mpsc::Receiver<Assignment>,
    pub(crate) orders: mpsc::Receiver<ShutDown>,
}

struct WorkspaceEntry {
    phase: Phase,
    offers: mpsc::Sender<Assignment>,
    orders: mpsc::Sender<ShutDown>,
    receivers: Option<WorkspaceReceivers>,
    /// Maximum size of the files of its build in bytes.
    disk_bytes_max: Option<u64>,
}

/// All workspaces of the worker.
pub(crate) struct Workspaces {
    all: Mutex<Vec<WorkspaceEntry>>,
    draining: AtomicBool,
    /// Why the disk is short of space or inodes, while no offers are accepted for that reason.
    shortage: Mutex<Option<String>>,
    /// That the store does not answer, while no offers are accepted for that reason.
    store_away: Mutex<Option<String>>,
    /// Faults of this worker, and the pause that follows from them.
    faults: Mutex<Faults>,
    /// What limits the number of builds.
    admission: Mutex<Admission>,
    /// Whether the last heartbeat said that a sensor allows no build.
    said_closed: AtomicBool,
    /// Changes when a workspace starts a build.
    begun: watch::Sender<()>,
    /// Signalled when a build starts whose files are limited.
    pub(crate) limited: Notify,
    /// Signalled when the dispatchers' view is out of date: send a heartbeat now.
    pub(crate) announce: Notify,
    /// Signalled when a workspace has new tool servers.
    pub(crate) tools: Notify,
    /// Cancelled at shutdown: workspaces close.
    pub(crate) closing: CancellationToken,
    idle: Notify,
}

/// Builds that were given back because of faults of this worker.
#[derive(Debug, Default)]
struct Faults {
    /// Number of them since a build ran.
    in_a_row: u32,
    /// Why no offers are accepted, during a pause.
    closed: Option<String>,
    sources: SourceFaults,
}

/// Number of workspaces that have a build, or got one that they have not claimed yet.
fn running(workspaces: &[WorkspaceEntry]) -> u32 {
    let has_one = |workspace: &&WorkspaceEntry| {
        matches!(workspace.phase, Phase::Busy { .. }) || workspace.offers.capacity() == 0
    };
    u32::try_from(workspaces.iter().filter(has_one).count()).unwrap_or(u32::MAX)
}

impl Workspaces {
    /// Creates `count` workspaces without a shim, limited by `window`.
    pub(crate) fn new(count: u16, window: Option<Window>) -> Self {
        let workspace = |_| {
            // The channel holds one message in addition to the one being handled.
            let (offers, offered) = mpsc::channel(1);
            let (orders, ordered) = mpsc::channel(1);
            let receivers = Some(WorkspaceReceivers { offers: offered, orders: ordered });
            WorkspaceEntry {
                phase: Phase::Starting(Warmth::default()),
                offers,
                orders,
                receivers,
                disk_bytes_max: None,
            }
        };
        Self {
            all: Mutex::new((0..count).map(workspace).collect()),
            draining: AtomicBool::new(false),
            shortage: Mutex::default(),
            store_away: Mutex::default(),
            faults: Mutex::default(),
            admission: Mutex::new(Admission::new(window)),
            said_closed: AtomicBool::new(false),
            begun: watch::Sender::new(()),
            limited: Notify::new(),
            announce: Notify::new(),
            tools: Notify::new(),
            closing: CancellationToken::new(),
            idle: Notify::new(),
        }
    }

    /// Sends an offer to its workspace, or refuses it if the workspace cannot start a build now.
    pub(crate) fn assign(&self, assignment: Assignment) {
        let refuse = |assignment: Assignment| {
            // The worker shuts down if the offer's handler has gone.
            let _ = assignment.verdict.send(OfferVerdict::Busy);
            // The dispatchers believe that the workspace is free.
            self.announce.notify_one();
        };
        if self.is_draining() || self.closed_because().is_some() {
            return refuse(assignment);
        }
        let workspaces = self.all.lock();
        if self.admission.lock().room(running(&workspaces)) == 0 {
            return refuse(assignment);
        }
        match workspaces.get(usize::from(assignment.offer.workspace)) {
            Some(WorkspaceEntry { phase: Phase::Idle(_) | Phase::Ending(_), offers, .. }) => {
                match offers.try_send(assignment) {
                    Ok(()) => self.admission.lock().note_running(running(&workspaces)),
                    Err(error) => refuse(error.into_inner()),
                }
            }
            Some(WorkspaceEntry {
                phase: Phase::Starting(_) | Phase::Busy { .. } | Phase::Broken, ..
            })
            | None => refuse(assignment),
        }
    }

    /// The state of every workspace, for a heartbeat. Warm workspaces are the first that builds may use.
    pub(crate) fn states(&self) -> Vec<WorkspaceState> {
        let workspaces = self.all.lock();
        let mut room = self.admission.lock().room(running(&workspaces));
        let is_warm = |workspace: &WorkspaceEntry| matches!(&workspace.phase, Phase::Idle(warmth) | Phase::Ending(warmth) if warmth.keys.is_some());
        let mut states = vec![WorkspaceState::Broken; workspaces.len()];
        let (warm, cold): (Vec<_>, Vec<_>) =
            states.iter_mut().zip(workspaces.iter()).partition(|(_, workspace)| is_warm(workspace));
        for (state, workspace) in warm.into_iter().chain(cold) {
            *state = match &workspace.phase {
                Phase::Starting(warmth) => WorkspaceState::Closed { warm: warmth.keys.clone() },
                Phase::Idle(warmth) | Phase::Ending(warmth) => {
                    let warm = warmth.keys.clone();
                    let admitted = room > 0;
                    room = room.saturating_sub(1);
                    if admitted { WorkspaceState::Idle { warm } } else { WorkspaceState::Closed { warm } }
                }
                Phase::Busy { key, .. } => WorkspaceState::Busy { group: key.group.clone(), id: key.id },
                Phase::Broken => WorkspaceState::Broken,
            };
        }
        states
    }

    /// The state of the congestion window, for heartbeats.
    pub(crate) fn window(&self) -> WindowState {
        let running = running(&self.all.lock());
        self.admission.lock().state(running)
    }

    /// Applies what the sensors read, and returns the state of the window.
    pub(crate) fn apply_readings(&self, readings: Readings, memory: Option<MemoryRoom>) -> WindowState {
        let running = running(&self.all.lock());
        let mut admission = self.admission.lock();
        let before = admission.room(running);
        admission.apply(readings, memory, running);
        let is_closed = admission.closed_because(running).is_some();
        if admission.room(running) != before || is_closed != self.said_closed.load(Ordering::Relaxed) {
            self.announce.notify_one();
        }
        admission.state(running)
    }

    /// Notes that the kernel killed a build for lack of memory.
    pub(crate) fn note_killed(&self) {
        self.admission.lock().note_killed();
    }

    /// Why the sensors allow no build now, if they do not.
    pub(crate) fn sensors_closed(&self) -> Option<String> {
        let running = running(&self.all.lock());
        self.admission.lock().closed_because(running)
    }

    /// Has the sensors read now, although nothing runs.
    pub(crate) fn read_sensors(&self) {
        self.begun.send_replace(());
    }

    /// Whether a sensor reports overload.
    pub(crate) fn is_short(&self) -> bool {
        self.admission.lock().is_short()
    }

    /// Whether no build runs.
    pub(crate) fn is_idle(&self) -> bool {
        running(&self.all.lock()) == 0
    }

    /// Changes whenever a build starts.
    pub(crate) fn begun(&self) -> watch::Receiver<()> {
        self.begun.subscribe()
    }

    /// Whether the worker accepts offers, for a heartbeat.
    pub(crate) fn status(&self) -> WorkerStatus {
        self.said_closed.store(self.sensors_closed().is_some(), Ordering::Relaxed);
        if self.is_draining() {
            WorkerStatus::Draining
        } else if self.closed_because().is_some() {
            WorkerStatus::Full
        } else {
            WorkerStatus::Ready
        }
    }

    /// Why the disk is short of space or inodes, if it is.
    pub(crate) fn shortage(&self) -> Option<String> {
        self.shortage.lock().clone()
    }

    /// Why no offers are accepted, if it is for the disk, the store, faults of this worker, or a sensor.
    pub(crate) fn closed_because(&self) -> Option<String> {
        self.shortage()
            .or_else(|| self.store_away.lock().clone())
            .or_else(|| self.faults.lock().closed.clone())
            .or_else(|| self.sensors_closed())
    }

    /// Notes that a build was given back because of a fault of this worker. After some in a row, refuses offers and
    /// returns for how long; then call [`Workspaces::try_again`].
    pub(crate) fn note_fault(&self, message: &str) -> Option<Duration> {
        let mut faults = self.faults.lock();
        // Builds that ran when the worker closed are of the same incident.
        if faults.closed.is_some() {
            return None;
        }
        faults.in_a_row = faults.in_a_row.saturating_add(1);
        let pause = pause_after_faults(faults.in_a_row)?;
        let given_back = match faults.in_a_row {
            1 => "a build was given back because".to_owned(),
            more => format!("{more} builds in a row were given back, the last because"),
        };
        faults.closed = Some(format!("{given_back} {message}; trying again after {} s", pause.as_secs()));
        self.announce.notify_one();
        Some(pause)
    }

    /// Accepts offers again after faults; the next fault closes the worker for longer.
    pub(crate) fn try_again(&self) {
        self.faults.lock().closed = None;
        self.announce.notify_one();
    }

    /// Notes that a build of `group` ran.
    pub(crate) fn note_success(&self, group: &Group, now: Millis) {
        let mut faults = self.faults.lock();
        faults.in_a_row = 0;
        faults.sources.note_run(group, now);
    }

    /// Notes that another worker could fetch the sources of a build; returns whether that counts as a fault of this worker.
    pub(crate) fn note_source_fault(&self, group: &Group, now: Millis) -> bool {
        self.faults.lock().sources.note(group, now)
    }

    /// Refuses offers while the store does not answer, or accepts them again.
    pub(crate) fn set_store_away(&self, why: Option<String>) {
        *self.store_away.lock() = why;
        self.announce.notify_one();
    }

    /// With a shortage, refuses offers and empties the idle workspaces; without one, accepts offers again.
    pub(crate) fn set_shortage(&self, shortage: Option<String>) {
        let is_short = shortage.is_some();
        *self.shortage.lock() = shortage;
        if is_short {
            for workspace in
                self.all.lock().iter().filter(|workspace| matches!(workspace.phase, Phase::Idle(_)))
            {
                let (done, _) = oneshot::channel();
                // If another order waits already, the workspace keeps its files until the next shortage.
                let _ = workspace.orders.try_send(ShutDown { why: "disk", files: true, done });
            }
        }
        self.announce.notify_one();
    }

    /// The workspaces that have a build.
    pub(crate) fn busy(&self) -> Vec<u16> {
        let workspaces = self.all.lock();
        let busy = (0..)
            .zip(workspaces.iter())
            .filter(|(_, workspace)| matches!(workspace.phase, Phase::Busy { .. }));
        busy.map(|(number, _)| number).collect()
    }

    /// Limits the files of the build in workspace `number` while it is busy.
    pub(crate) fn set_disk_limit(&self, number: u16, bytes_max: Option<u64>) {
        if let Some(workspace) = self.all.lock().get_mut(usize::from(number)) {
            workspace.disk_bytes_max = bytes_max;
        }
        if bytes_max.is_some() {
            self.limited.notify_one();
        }
    }

    /// The workspaces with a build whose files are limited, and the limits.
    pub(crate) fn disk_limits(&self) -> Vec<(u16, u64)> {
        let workspaces = self.all.lock();
        let limited = (0..).zip(workspaces.iter()).filter_map(|(number, workspace)| {
            matches!(workspace.phase, Phase::Busy { .. }).then_some((number, workspace.disk_bytes_max?))
        });
        limited.collect()
    }

    /// Stops the run in workspace `number`.
    pub(crate) fn stop(&self, number: u16, cause: Cause) {
        if let Some(WorkspaceEntry { phase: Phase::Busy { stop, .. }, .. }) =
            self.all.lock().get(usize::from(number))
        {
            stop.now(cause);
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Starts or ends draining: a draining worker accepts no offers and keeps no processes.
    pub(crate) fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::Relaxed);
        if draining {
            let idle = self.with_tools().into_iter().map(|(_, number)| number);
            // The loops of the workspaces carry out the orders; their end is not awaited.
            idle.for_each(|number| drop(self.shut_down(number, "drain")));
        }
        self.announce.notify_one();
    }

    /// The idle workspaces with tool servers, and since when they have them; the least recently used first.
    pub(crate) fn with_tools(&self) -> Vec<(Instant, u16)> {
        let workspaces = self.all.lock();
        let tools = (0..).zip(workspaces.iter()).filter_map(|(number, workspace)| match &workspace.phase {
            Phase::Idle(warmth) | Phase::Ending(warmth) => Some((warmth.tools_since?, number)),
            Phase::Starting(_) | Phase::Busy { .. } | Phase::Broken => None,
        });
        let mut found: Vec<(Instant, u16)> = tools.collect();
        found.sort_unstable();
        found
    }

    /// Orders a workspace to shut its tool servers down. The receiver resolves when that is done, and fails if the
    /// workspace has started something else.
    pub(crate) fn shut_down(&self, number: u16, why: &'static str) -> oneshot::Receiver<()> {
        let (done, outcome) = oneshot::channel();
        if let Some(workspace) = self.all.lock().get(usize::from(number)) {
            // A second order in the queue would change nothing.
            let _ = workspace.orders.try_send(ShutDown { why, files: false, done });
        } else {
            impossible!("workspace {number} does not exist, but has tool servers");
        }
        outcome
    }

    /// Stops every run on this worker.
    pub(crate) fn stop_all(&self, cause: Cause) {
        for workspace in self.all.lock().iter() {
            if let Phase::Busy { stop, .. } = &workspace.phase {
                stop.now(cause);
            }
        }
    }

    /// The stop handle of this attempt's run, if it runs here.
    pub(crate) fn stop_of(&self, wanted: &BuildKey, run: Attempt) -> Option<Stop> {
        self.all.lock().iter().find_map(|workspace| match &workspace.phase {
            Phase::Busy { key, attempt, stop } if key == wanted && *attempt == run => Some(stop.clone()),
            Phase::Busy { .. } | Phase::Starting(_) | Phase::Idle(_) | Phase::Ending(_) | Phase::Broken => {
                None
            }
        })
    }

    /// Returns when no workspace is busy.
    pub(crate) async fn all_idle(&self) {
        loop {
            let changed = self.idle.notified();
            if self.all.lock().iter().all(|workspace| {
                matches!(workspace.phase, Phase::Starting(_) | Phase::Idle(_) | Phase::Broken)
            }) {
                return;
            }
            changed.await;
        }
    }

    pub(crate) fn set(&self, number: u16, phase: Phase) {
        let begins = matches!(&phase, Phase::Busy { .. });
        let has_tools = matches!(&phase, Phase::Idle(Warmth { tools_since: Some(_), .. }));
        if let Some(workspace) = self.all.lock().get_mut(usize::from(number)) {
            workspace.phase = phase;
        } else {
            impossible!("workspace {number} does not exist, but changes its state");
        }
        self.idle.notify_waiters();
        // The end of a build may leave room that no sensor has to be read for.
        if self.said_closed.load(Ordering::Relaxed) && self.sensors_closed().is_none() {
            self.announce.notify_one();
        }
        if begins {
            self.begun.send_replace(());
        }
        if has_tools {
            self.tools.notify_one();
        }
    }

    /// The result is written: the next offer may come.
    pub(crate) fn set_ending(&self, number: u16, keys: Option<WorkspaceKeys>) {
        self.set(number, Phase::Ending(Warmth { keys, tools_since: None }));
    }

    /// The receiving ends of workspace `number`; available once.
    pub(crate) fn take_receivers(&self, number: u16) -> Option<WorkspaceReceivers> {
        self.all.lock().get_mut(usize::from(number))?.receivers.take()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use model::BuildId;

    use super::*;

    fn busy() -> Phase {
        let key = BuildKey { group: "g".parse().unwrap(), id: BuildId::generate() };
        Phase::Busy { key, attempt: Attempt::FIRST, stop: Stop::default() }
    }

    /// Offers a build to the first workspace; `None` while it has no answer.
    fn offer_to_first(workspaces: &Workspaces) -> Option<OfferVerdict> {
        let key = BuildKey { group: "g".parse().unwrap(), id: BuildId::generate() };
        let offer = Offer {
            group: key.group.clone(),
            id: key.id,
            sequence: Sequence(1),
            workspace: 0,
            deadline_ms: model::Millis(u64::MAX),
            dispatched_at_us: 0,
            dispatched_at_sequence: Sequence(1),
            workspace_kind: None,
            record: None,
        };
        let (verdict, mut answer) = oneshot::channel();
        workspaces.assign(Assignment { offer, key, record: None, verdict });
        answer.try_recv().ok()
    }

    #[test]
    fn a_workspace_takes_no_offer_before_its_shim_runs() {
        let workspaces = Workspaces::new(2, None);
        let closed = WorkspaceState::Closed { warm: None };
        assert_eq!(workspaces.states(), [closed.clone(), closed.clone()]);
        assert_eq!(offer_to_first(&workspaces), Some(OfferVerdict::Busy));
        workspaces.set(0, Phase::Idle(Warmth::default()));
        assert_eq!(workspaces.states(), [WorkspaceState::Idle { warm: None }, closed]);
        assert_eq!(offer_to_first(&workspaces), None, "the offer is in the channel of the workspace");
    }

    #[tokio::test]
    async fn the_end_of_a_build_that_leaves_room_is_announced_at_once() {
        let workspaces = Workspaces::new(4, None);
        (0..2).for_each(|number| workspaces.set(number, busy()));
        let readings = Readings { red: vec!["no memory is left".to_owned()], ..Readings::default() };
        workspaces.apply_readings(readings, Some(MemoryRoom { running: 2, room: 0 }));
        assert!(workspaces.announce.notified().now_or_never().is_some());
        assert_eq!(workspaces.status(), WorkerStatus::Full);
        workspaces.set_ending(0, None);
        assert!(workspaces.announce.notified().now_or_never().is_some());
        assert_eq!(workspaces.status(), WorkerStatus::Ready);
    }
}
