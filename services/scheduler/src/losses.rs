//! Lost executors: what they had waits again, or is given up. Each loss comes as a message; a sweep finds the unheard.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_nats::jetstream::{AckKind, Message};
use bus::{BusError, Encoding, ExecutorLeaseSubject, LeaseChange, Written, decode, stream};
use futures::{StreamExt as _, TryStreamExt as _, stream as futures_stream};
use index::{IndexError, actions::LiveExecution};
use model::{ExecutionRecord, ExecutorId};
use policy::actions::{AfterCopy, CopyEnd, after_copy};
use service::{Context, ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tokio::sync::Semaphore;
use tracing::{error, info, warn};

use crate::Shared;

/// How long those at hand may take when the service stops.
const DRAIN: Duration = Duration::from_secs(10);
const BATCH: usize = 1000;
const RETRY: Duration = Duration::from_millis(200);
/// Executors handled at once, and executions of each.
const HANDS: usize = 16;
const WRITES: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub(crate) enum LossError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Listens to the bucket of executors' leases until the service stops.
pub(crate) async fn serve(shared: Shared) -> Result<(), ServiceError> {
    let mut queue =
        jetstream::open(&shared.context.bus, stream::EXECUTORS, jetstream::EXECUTOR_CONSUMER).await?;
    let hands = Arc::new(Semaphore::new(HANDS));
    loop {
        tokio::select! {
            biased;
            () = shared.context.stop.cancelled() => break,
            message = queue.next(|| BATCH) => take(&shared, &hands, message).await,
        }
    }
    let all = u32::try_from(HANDS).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(DRAIN, hands.acquire_many(all)).await;
    Ok(())
}

async fn take(shared: &Shared, hands: &Arc<Semaphore>, message: Message) {
    if LeaseChange::of(message.headers.as_ref()) == LeaseChange::Held {
        let _ = message.ack().await;
        return;
    }
    let Ok(permit) = hands.clone().acquire_owned().await else { return };
    let shared = shared.clone();
    tokio::spawn(async move {
        handle(&shared, &message).await;
        drop(permit);
    });
}

async fn handle(shared: &Shared, message: &Message) {
    crash_point(Step::ExecutorLossHeard);
    let executor = match message.subject.as_str().parse::<ExecutorLeaseSubject>() {
        Ok(ExecutorLeaseSubject(executor)) => executor,
        Err(error) => {
            warn!(%error, "an executor with a strange name was lost");
            let _ = message.ack().await;
            return;
        }
    };
    match lost(shared, &executor).await {
        Ok(()) => {
            crash_point(Step::ExecutorLossWritten);
            let _ = message.ack().await;
        }
        Err(error) => {
            warn!(%executor, error = telemetry::error_chain(&error), "a lost executor is looked at again");
            let _ = message.ack_with(AckKind::Nak(Some(RETRY))).await;
        }
    }
}

/// Looks for executors that have something and hold no lease: whose loss was heard while Redis did not know what they had.
/// After every rebuild and lost connection, and once a while.
pub(crate) async fn sweep(shared: Shared) -> Result<(), ServiceError> {
    let pause = Duration::from_secs(shared.context.settings.lease_ttl_seconds) / 2;
    let mut reconnects = shared.context.bus.reconnects();
    loop {
        if let Err(error) = sweep_once(&shared).await {
            warn!(error = telemetry::error_chain(&error), "looking for lost executors again soon");
        }
        tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
            () = shared.wakes.sweep.notified() => {}
            () = reconnects.next() => {}
        }
    }
}

async fn sweep_once(shared: &Shared) -> Result<(), LossError> {
    let holders = shared.actions.holders().await?;
    if holders.is_empty() {
        return Ok(());
    }
    let live: HashSet<ExecutorId> =
        shared.context.bus.executors().await?.into_iter().map(|heartbeat| heartbeat.executor).collect();
    for executor in holders.iter().filter(|executor| !live.contains(executor)) {
        lost(shared, executor).await?;
    }
    Ok(())
}

/// Moves on what `executor` had, unless it holds a lease. The claims stay in the index until the projection has read what
/// is written here: whoever takes over from a scheduler that dies meanwhile finds the rest of them.
pub(crate) async fn lost(shared: &Shared, executor: &ExecutorId) -> Result<(), LossError> {
    let context = &shared.context;
    if !context.bus.lease_is_gone(executor).await? {
        return Ok(());
    }
    shared.view.lost(executor);
    let found = shared.actions.lost(executor).await?;
    if found.executions.is_empty() {
        return Ok(());
    }
    let host = found.host.map(|host| format!(" on {host}")).unwrap_or_default();
    let reason = format!("executor {executor}{host} was lost");
    let total = found.executions.len();
    info!(%executor, executions = total, "an executor was lost");
    let writes = found.executions.into_iter().map(|execution| move_on(context, executor, execution, &reason));
    futures_stream::iter(writes).buffer_unordered(WRITES).try_collect::<()>().await?;
    Ok(())
}

/// One execution, by compare-and-set behind the record that is known: whoever wrote another one first has won.
async fn move_on(
    context: &Context,
    executor: &ExecutorId,
    execution: LiveExecution,
    reason: &str,
) -> Result<(), BusError> {
    let record: ExecutionRecord = match decode(Encoding::Json, &execution.record) {
        Ok(record) => record,
        Err(error) => {
            error!(key = %execution.key, %error, "redis holds a record that cannot be read");
            return Ok(());
        }
    };
    let end = CopyEnd::Infrastructure { reason: reason.to_owned() };
    let Some(next) = after_copy(&record, execution.sequence, executor, end, context.bus.now()) else {
        return Ok(());
    };
    if let Written::Won(_) = context.bus.transition(next.record(), execution.sequence, PATIENCE).await? {
        match &next {
            AfterCopy::Requeue(_) => count(Counter::ExecutionsRequeued, &[], 1),
            AfterCopy::GoOn(_) => {}
            AfterCopy::Finish(record) | AfterCopy::GiveUp(record) => {
                count(Counter::ExecutionsFinished, &[(Label::Outcome, "lost")], 1);
                info!(key = %execution.key, attempt = %record.attempt, "an execution is given up");
            }
        }
    }
    Ok(())
}
