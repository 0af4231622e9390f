//! The workspaces: what each does, and the loop of one.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::FutureExt as _;
use model::{Attempt, BuildKey, BuildRecord, Offer, OfferVerdict, Sequence, WorkerStatus, WorkspaceState};
use service::ServiceError;
use shim::Shim;
use tokio::sync::{Notify, mpsc, oneshot};
use tracing::{debug, warn};

use crate::{
    Shared, claim, run,
    stop::{Cause, Stop},
};

/// How soon a shim that did not start is tried again.
const SHIM_RETRY: Duration = Duration::from_secs(5);

/// A build offered to this workspace.
pub(crate) struct Assignment {
    pub(crate) offer: Offer,
    pub(crate) key: BuildKey,
    /// The record, when it was read already.
    pub(crate) record: Option<(Sequence, BuildRecord)>,
    pub(crate) verdict: oneshot::Sender<OfferVerdict>,
}

/// What a workspace does.
enum Phase {
    Idle,
    /// Claims or runs a build.
    Busy {
        key: BuildKey,
        attempt: Attempt,
        stop: Stop,
    },
    /// The build's result is written; the workspace is about to be idle.
    Ending,
    /// Its shim does not start: nothing can be run safely.
    Broken,
}

struct Slot {
    phase: Phase,
    offers: mpsc::Sender<Assignment>,
    inbox: Option<mpsc::Receiver<Assignment>>,
}

/// All workspaces of the worker.
pub(crate) struct Slots {
    all: Mutex<Vec<Slot>>,
    draining: std::sync::atomic::AtomicBool,
    /// Something that the dispatchers do not know: say it now.
    pub(crate) announce: Notify,
    idle: Notify,
}

impl Slots {
    /// `count` idle workspaces.
    pub(crate) fn new(count: u16) -> Self {
        let slot = |_| {
            // One that runs out and one that is about to.
            let (offers, inbox) = mpsc::channel(1);
            Slot { phase: Phase::Idle, offers, inbox: Some(inbox) }
        };
        Self {
            all: Mutex::new((0..count).map(slot).collect()),
            draining: std::sync::atomic::AtomicBool::new(false),
            announce: Notify::new(),
            idle: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands an offer to its workspace, unless that is taken.
    pub(crate) fn hand(&self, assignment: Assignment) {
        let refuse = |assignment: Assignment| {
            let _ = assignment.verdict.send(OfferVerdict::Busy);
            // The dispatchers think that it is free.
            self.announce.notify_one();
        };
        if self.is_draining() {
            return refuse(assignment);
        }
        let slots = self.lock();
        match slots.get(usize::from(assignment.offer.workspace)) {
            Some(Slot { phase: Phase::Idle | Phase::Ending, offers, .. }) => {
                if let Err(error) = offers.try_send(assignment) {
                    refuse(error.into_inner());
                }
            }
            Some(Slot { phase: Phase::Busy { .. } | Phase::Broken, .. }) | None => refuse(assignment),
        }
    }

    /// What every workspace does, for a heartbeat.
    pub(crate) fn states(&self) -> Vec<WorkspaceState> {
        let state = |slot: &Slot| match &slot.phase {
            Phase::Idle | Phase::Ending => WorkspaceState::Idle,
            Phase::Busy { key, .. } => WorkspaceState::Busy { group: key.group.clone(), id: key.id },
            Phase::Broken => WorkspaceState::Broken,
        };
        self.lock().iter().map(state).collect()
    }

    /// Whether offers are taken.
    pub(crate) fn status(&self) -> WorkerStatus {
        if self.is_draining() { WorkerStatus::Draining } else { WorkerStatus::Ready }
    }

    fn is_draining(&self) -> bool {
        self.draining.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Takes no offers, or takes them again.
    pub(crate) fn set_draining(&self, draining: bool) {
        self.draining.store(draining, std::sync::atomic::Ordering::Relaxed);
        self.announce.notify_one();
    }

    /// Tells every run to end.
    pub(crate) fn stop_all(&self, cause: Cause) {
        for slot in self.lock().iter() {
            if let Phase::Busy { stop, .. } = &slot.phase {
                stop.now(cause);
            }
        }
    }

    /// How to tell the run of this attempt to end, if it runs here.
    pub(crate) fn stop_of(&self, wanted: &BuildKey, run: Attempt) -> Option<Stop> {
        self.lock().iter().find_map(|slot| match &slot.phase {
            Phase::Busy { key, attempt, stop } if key == wanted && *attempt == run => Some(stop.clone()),
            Phase::Busy { .. } | Phase::Idle | Phase::Ending | Phase::Broken => None,
        })
    }

    /// Returns when no workspace is busy.
    pub(crate) async fn all_idle(&self) {
        loop {
            let changed = self.idle.notified();
            if self.lock().iter().all(|slot| matches!(slot.phase, Phase::Idle | Phase::Broken)) {
                return;
            }
            changed.await;
        }
    }

    fn set(&self, number: u16, phase: Phase) {
        if let Some(slot) = self.lock().get_mut(usize::from(number)) {
            slot.phase = phase;
        }
        self.idle.notify_waiters();
    }

    /// Makes a broken workspace idle; says whether it was broken.
    fn mend(&self, number: u16) -> bool {
        let broken = matches!(self.lock().get(usize::from(number)), Some(Slot { phase: Phase::Broken, .. }));
        if broken {
            self.set(number, Phase::Idle);
        }
        broken
    }

    /// The result is written: the next offer may come.
    pub(crate) fn set_ending(&self, number: u16) {
        self.set(number, Phase::Ending);
    }

    fn take_inbox(&self, number: u16) -> Option<mpsc::Receiver<Assignment>> {
        self.lock().get_mut(usize::from(number))?.inbox.take()
    }
}

/// The loop of one workspace: claims what it is handed and runs it.
pub(crate) async fn serve(shared: Arc<Shared>, number: u16, program: PathBuf) -> Result<(), ServiceError> {
    let mut inbox = shared
        .slots
        .take_inbox(number)
        .ok_or_else(|| ServiceError::failed("a workspace", "it is served already"))?;
    let mut shim = None;
    loop {
        let Some(ready) = ensure_shim(&mut shim, &program).await else {
            shared.slots.set(number, Phase::Broken);
            shared.slots.announce.notify_one();
            tokio::time::sleep(SHIM_RETRY).await;
            if let Some(handed) = inbox.recv().now_or_never().flatten() {
                let _ = handed.verdict.send(OfferVerdict::Busy);
            }
            continue;
        };
        if shared.slots.mend(number) {
            shared.slots.announce.notify_one();
        }
        let Some(assignment) = inbox.recv().await else { return Ok(()) };
        let stop = Stop::default();
        let attempt = assignment.record.as_ref().map_or(Attempt::FIRST, |(_, record)| record.attempt);
        shared.slots.set(number, Phase::Busy { key: assignment.key.clone(), attempt, stop: stop.clone() });
        let shim_lives = work(&shared, number, ready, assignment, stop).await;
        if !shim_lives {
            shim = None;
        }
        shared.slots.set(number, Phase::Idle);
    }
}

/// Claims and runs what was handed. Says whether the shim can be used again.
async fn work(
    shared: &Arc<Shared>,
    number: u16,
    shim: &mut Shim,
    assignment: Assignment,
    stop: Stop,
) -> bool {
    let Assignment { offer, key, record, verdict } = assignment;
    match claim::claim(shared, &offer, &key, record).await {
        Err(refusal) => {
            debug!(%key, ?refusal, "not claimed");
            let _ = verdict.send(refusal);
            true
        }
        Ok(claimed) => {
            let _ = verdict.send(OfferVerdict::Started);
            // The record may have been read only now.
            let attempt = claimed.record.attempt;
            shared.slots.set(number, Phase::Busy { key: key.clone(), attempt, stop: stop.clone() });
            run::run(shared, number, shim, claimed, stop).await
        }
    }
}

/// The workspace's shim, started if there is none: ahead of the first build, which then does not wait for it.
async fn ensure_shim<'a>(shim: &'a mut Option<Shim>, program: &std::path::Path) -> Option<&'a mut Shim> {
    if shim.is_none() {
        match Shim::start(program).await {
            Ok(started) => *shim = Some(started),
            Err(error) => warn!(error = telemetry::error_chain(&error), "a shim does not start"),
        }
    }
    shim.as_mut()
}
