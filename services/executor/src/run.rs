//! One action, from its claim to its end.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt as _;
use model::{Claimed, Esu, Execution, ExecutionStage, Resources};
use policy::actions::CopyEnd;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use trace::CopyTimes;
use tracing::{debug, warn};

use crate::{
    devices::Assigned,
    execute::{self, Left},
    finish,
    held_actions::{ActionHandle, Work},
    image,
    needed_images::ActionImages,
    outcome::Fault,
    progress::Progress,
    serving,
    shared::Shared,
    slot_threads::{RunInSlot, SlotThread},
    spec::Spec,
};

/// Fetches the images of an action that holds no room meanwhile; then it starts, or waits for room, or ends.
pub(crate) fn fetch_images(shared: &Arc<Shared>, execution: Execution, handle: ActionHandle) {
    let shared = Arc::clone(shared);
    shared.main.clone().spawn(async move {
        let begun = Instant::now();
        let opening = AssertUnwindSafe(open_images(&shared, &execution, &handle.stop)).catch_unwind().await;
        let panicked = || Err(Fault::Machine { reason: "the executor panicked".to_owned() });
        match opening.unwrap_or_else(|_| panicked()) {
            Ok(images) => {
                let inputs = |claimed: &_, handle: &_| fetch(&shared, claimed, handle);
                begin_all(&shared, shared.actions.images_here(&handle, (images, begun.elapsed()), inputs));
            }
            Err(fault) => {
                if let Some(work) = shared.actions.images_failed(&handle) {
                    let end = fault.end(&shared.id);
                    finish::write_end(shared, work, (end, CopyTimes::default()), Esu::default()).await;
                }
            }
        }
    });
}

async fn open_images(
    shared: &Shared,
    execution: &Execution,
    stop: &CancellationToken,
) -> Result<ActionImages, Fault> {
    let key = execution.key();
    let progress = Progress::of(shared, &key);
    progress.enter(ExecutionStage::Fetching).await;
    tokio::select! {
        () = stop.cancelled() => Err(Fault::Stopped),
        images = image::all(shared, execution, progress.pull()) => images,
        never = progress.report_later() => match never {},
    }
}

/// Fetches the inputs of a claimed action before it occupies a slot, if they are remote. Yields the duration.
pub(crate) fn fetch(
    shared: &Arc<Shared>,
    claimed: &Claimed,
    handle: &ActionHandle,
) -> Option<JoinHandle<Duration>> {
    shared.cas.config().backing.as_ref()?;
    let (shared, stop) = (Arc::clone(shared), handle.stop.clone());
    let execution = claimed.record.execution.clone();
    let main = shared.main.clone();
    Some(main.spawn(async move {
        let begun = Instant::now();
        fetch_inputs(&shared, &execution, &stop).await;
        let took = begun.elapsed();
        shared.actions.fetched(took);
        took
    }))
}

/// Fetches the inputs of an action into the local tier. A failure is retried, and reported, in the slot.
async fn fetch_inputs(shared: &Shared, execution: &Execution, stop: &CancellationToken) {
    let key = execution.key();
    let progress = Progress::of(shared, &key);
    progress.enter(ExecutionStage::Fetching).await;
    let fetch = async {
        if let Ok(spec) = Spec::read(&shared.cas, execution, &shared.settings.pool_properties).await
            && let Err(error) = shared.inputs.fetch(&spec.input_root).await
        {
            debug!(%key, error = telemetry::error_chain(&error), "the fetch is retried in the slot");
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = fetch => {}
        never = progress.report_later() => match never {},
    }
}

/// Begins all of these actions.
pub(crate) fn begin_all(shared: &Arc<Shared>, all: Vec<Work>) {
    for work in all {
        begin(shared, work);
    }
}

/// Runs an action in the next free slot and writes its end, unless it is stopped: then the end is not wanted.
pub(crate) fn begin(shared: &Arc<Shared>, work: Work) {
    if let Some(work) = ready(shared, work) {
        shared.slot_threads.submit(work);
    }
}

/// The work of a slot for an action. `None` if its inputs are still being fetched: then it is submitted later. An action that runs
/// services for others needs no slot.
fn ready(shared: &Arc<Shared>, mut work: Work) -> Option<RunInSlot> {
    if serving::is_for(&work) {
        serving::begin(shared, work, begin_all);
        return None;
    }
    let Some(fetching) = work.fetching.take() else {
        return Some(in_slot(shared, work, Duration::ZERO));
    };
    let shared = Arc::clone(shared);
    shared.main.clone().spawn(async move {
        let fetched = fetching
            .await
            .inspect_err(|error| debug!(%error, "the fetch of inputs failed; it is retried in the slot"))
            .unwrap_or_default();
        shared.slot_threads.submit(in_slot(&shared, work, fetched));
    });
    None
}

/// The work of a slot for an action whose inputs took `fetched` to fetch.
fn in_slot(shared: &Arc<Shared>, work: Work, fetched: Duration) -> RunInSlot {
    let shared = Arc::clone(shared);
    let fetched = fetched.saturating_add(work.images_took);
    RunInSlot(Box::new(move |slot_thread| Box::pin(run_in_slot(shared, work, slot_thread, fetched))))
}

/// Runs an action in a slot and has its end written. Returns the next work for this slot.
async fn run_in_slot(
    shared: Arc<Shared>,
    work: Work,
    slot_thread: &mut SlotThread,
    fetched: Duration,
) -> Option<RunInSlot> {
    let key = work.key();
    shared.usage.begin(&key, &work.claimed.size);
    let mut left = Left::default();
    let run = run(&shared, &work, (slot_thread, &mut left), fetched);
    let end = AssertUnwindSafe(run).catch_unwind().await.unwrap_or_else(|_| {
        slot_thread.break_slot();
        Some(CopyEnd::Infrastructure { reason: "the executor panicked".to_owned() })
    });
    // Otherwise processes of the command may still write to its input root.
    let has_ended = end.is_some() && !slot_thread.is_broken();
    let mut is_dead = slot_thread.clean_up().await;
    if let Some(services) = left.services {
        is_dead &= services.end(&shared).await;
    }
    if let Some(interactor) = left.interactor {
        is_dead &= interactor.end(&shared).await;
    }
    drop(left.turn);
    let freed = freed(&shared, &work, left.devices, is_dead);
    let esu = shared.usage.end(&key);
    let mut next = None;
    for work in shared.actions.leave_slot(&key, &work.handle, &freed) {
        match ready(&shared, work) {
            Some(work) if next.is_none() => next = Some(work),
            Some(work) => shared.slot_threads.submit(work),
            None => {}
        }
    }
    // The slot must not wait for the store, and the result must not wait for the slot.
    shared.main.clone().spawn(finish::write_end(shared.clone(), work, (end, left.times), esu));
    if let Some(root) = left.root.filter(|_| has_ended) {
        shared.inputs.release(root).await;
    }
    next
}

/// The resources that an action frees which has left its slot. If processes of it may be alive, no other action gets its
/// devices until the executor is started again.
fn freed(shared: &Shared, work: &Work, devices: Assigned, is_dead: bool) -> Resources {
    let mut freed = work.claimed.size.clone();
    if is_dead || devices.is_empty() {
        shared.devices.release(devices);
    } else {
        let key = work.key();
        warn!(%key, ?devices, "an action does not die: no other gets its devices before a restart");
        freed.custom.retain(|name, _| !devices.has(name));
    }
    freed
}

/// Runs the action; `None` if its end is not wanted.
async fn run(
    shared: &Shared,
    work: &Work,
    slot: (&mut SlotThread, &mut Left),
    fetched: Duration,
) -> Option<CopyEnd> {
    let key = work.key();
    let progress = Progress::of(shared, &key);
    let end = tokio::select! {
        biased;
        () = work.handle.stop.cancelled() => return None,
        end = execute::execute(shared, work, slot, fetched, &progress) => end,
        never = progress.report_later() => match never {},
    };
    end.map_or_else(|fault| fault.end(&shared.id), Some)
}
