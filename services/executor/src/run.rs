//! One action, from its claim to its end.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt as _;
use model::{Claimed, Esu, Execution, ExecutionStage};
use policy::actions::CopyEnd;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    execute, finish,
    held_actions::{ActionHandle, Work},
    progress::Progress,
    shared::Shared,
    slot_threads::SlotThread,
    spec::Spec,
};

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
        if let Ok(spec) = Spec::read(&shared.cas, execution).await
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

/// Runs an action in the next free slot and writes its end, unless it is stopped: then the end is not wanted.
pub(crate) fn begin(shared: &Arc<Shared>, mut work: Work) {
    let Some(fetching) = work.fetching.take() else {
        run_in_slot(shared, work, Duration::ZERO);
        return;
    };
    let shared = Arc::clone(shared);
    shared.main.clone().spawn(async move {
        let fetched = fetching
            .await
            .inspect_err(|error| debug!(%error, "the fetch of inputs failed; it is retried in the slot"))
            .unwrap_or_default();
        run_in_slot(&shared, work, fetched);
    });
}

/// Runs an action whose inputs took `fetched` to fetch.
fn run_in_slot(shared: &Arc<Shared>, work: Work, fetched: Duration) {
    let shared = Arc::clone(shared);
    shared.clone().slot_threads.submit(Box::new(move |slot_thread| {
        Box::pin(async move {
            let key = work.key();
            shared.usage.begin(&key, &work.claimed.size);
            let run = AssertUnwindSafe(run(&shared, &work, slot_thread, fetched)).catch_unwind().await;
            let end = run.unwrap_or_else(|_| {
                slot_thread.break_slot();
                Some(CopyEnd::Infrastructure { reason: "the executor panicked".to_owned() })
            });
            slot_thread.clean_up().await;
            let used = shared.usage.end(&key);
            for next in shared.actions.leave_slot(&key, &work.handle, &work.claimed.size) {
                begin(&shared, next);
            }
            // The slot must not wait for the store.
            shared.main.clone().spawn(write_end(shared, work, end, used));
        })
    }));
}

/// Runs the action; `None` if its end is not wanted.
async fn run(
    shared: &Shared,
    work: &Work,
    slot_thread: &mut SlotThread,
    fetched: Duration,
) -> Option<CopyEnd> {
    let key = work.key();
    let progress = Progress::of(shared, &key);
    let end = tokio::select! {
        biased;
        () = work.handle.stop.cancelled() => return None,
        end = execute::execute(shared, work, slot_thread, fetched, &progress) => end,
        never = progress.report_later() => match never {},
    };
    end.map_or_else(|fault| fault.end(&shared.id), Some)
}

async fn write_end(shared: Arc<Shared>, work: Work, end: Option<CopyEnd>, used: Esu) {
    let Work { claimed, handle, .. } = work;
    let key = claimed.record.execution.key();
    shared.usage.report_to_build(&shared.context.bus, &claimed.record.execution, used).await;
    let is_reported = if let Some(end) = end {
        finish::finish(&shared, *claimed, &handle, end).await
    } else {
        debug!(%key, "action stopped");
        false
    };
    if !is_reported {
        shared.actions.room_changed.notify_one();
    }
    shared.actions.release(&key, &handle);
}
