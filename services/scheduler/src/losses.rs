//! Handles lost executors: their executions are requeued or given up. Each loss arrives as a message; a sweep finds
//! losses whose message was missed.

use std::{collections::HashSet, time::Duration};

use bus::{
    BusError, Delivery, ExecutorLeaseSubject, FromJson as _, Handled, LeaseChange, Limits, Published,
    Written, stream,
};
use futures::{StreamExt as _, TryStreamExt as _, stream as futures_stream};
use index::{IndexError, actions::LiveExecution};
use model::{ExecutionRecord, ExecutorId};
use policy::actions::{AfterCopy, CopyEnd, after_copy};
use service::{Context, ServiceError, Step, crash_point, trace_copy_ended};
use telemetry::metrics::{Counter, Label, count};
use trace::{CopyTimes, Ended};
use tracing::{error, info, warn};

use crate::Shared;

/// Of executors that are handled at once; [`WRITES`] is the number of executions of each.
const LIMITS: Limits = Limits { at_once: 16, batch: Some(1000), drain: Duration::from_secs(10) };
const WRITES: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub(crate) enum LossError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Follows the bucket of executors' leases until the service stops.
pub(crate) async fn serve(shared: Shared) -> Result<(), ServiceError> {
    let bus = &shared.context.bus;
    let queue = jetstream::open(bus, stream::EXECUTORS, jetstream::EXECUTOR_CONSUMER).await?;
    let has_ended = |message: &Published| message.lease_change() != LeaseChange::Held;
    let handle = |delivery: Delivery| {
        let shared = shared.clone();
        async move { handle(&shared, &delivery.message).await }
    };
    queue.serve(LIMITS, &shared.context.stop, has_ended, handle).await;
    Ok(())
}

async fn handle(shared: &Shared, message: &Published) -> Handled {
    crash_point(Step::ExecutorLossHeard);
    let executor = match message.subject().parse::<ExecutorLeaseSubject>() {
        Ok(ExecutorLeaseSubject(executor)) => executor,
        Err(error) => {
            warn!(%error, "cannot parse the name of a lost executor");
            return Handled::Done;
        }
    };
    match lost(shared, &executor).await {
        Ok(()) => {
            crash_point(Step::ExecutorLossWritten);
            Handled::Done
        }
        Err(error) => {
            warn!(%executor, error = telemetry::error_chain(&error), "cannot handle a lost executor; retrying");
            Handled::Again
        }
    }
}

/// Sweeps for executors that have executions but no lease: their loss was received while Redis did not know what they
/// had. Runs after every rebuild and lost connection, and periodically.
pub(crate) async fn sweep(shared: Shared) -> Result<(), ServiceError> {
    let pause = shared.lease_ttl / 2;
    let mut reconnects = shared.context.bus.reconnects();
    loop {
        if let Err(error) = sweep_once(&shared).await {
            warn!(error = telemetry::error_chain(&error), "cannot sweep for lost executors; retrying");
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
    let live: HashSet<ExecutorId> = shared
        .context
        .bus
        .leases()
        .executors()
        .await?
        .into_iter()
        .map(|heartbeat| heartbeat.executor)
        .collect();
    for executor in holders.iter().filter(|executor| !live.contains(executor)) {
        lost(shared, executor).await?;
    }
    Ok(())
}

/// Requeues or ends the executions of `executor`, unless it holds a lease. The claims stay in the index until the
/// projection has read the records written here, so that another scheduler finds the rest if this one dies midway.
pub(crate) async fn lost(shared: &Shared, executor: &ExecutorId) -> Result<(), LossError> {
    let context = &shared.context;
    if !context.bus.leases().is_gone(executor).await? {
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
    let writes =
        found.executions.into_iter().map(|execution| end_copy(context, executor, execution, &reason));
    futures_stream::iter(writes).buffer_unordered(WRITES).try_collect::<()>().await?;
    Ok(())
}

/// Ends the copy of one execution on a lost executor, by compare-and-set against the last known record: if another
/// record was written first, that one remains.
async fn end_copy(
    context: &Context,
    executor: &ExecutorId,
    execution: LiveExecution,
    reason: &str,
) -> Result<(), BusError> {
    let record = match ExecutionRecord::from_json(&execution.record) {
        Ok(record) => record,
        Err(error) => {
            error!(key = %execution.key, %error, "cannot read a record in Redis");
            return Ok(());
        }
    };
    let end = CopyEnd::Infrastructure { reason: reason.to_owned() };
    let Some(next) = after_copy(&record, execution.sequence, executor, end, context.bus.now()) else {
        return Ok(());
    };
    if let Written::Won(_) = context.bus.transition(next.record(), execution.sequence, PATIENCE).await? {
        let (after, at) = (Some(next.record()), context.bus.clock().system_time());
        // When the executor started it is not known: the time since it waited counts as its run.
        let times = CopyTimes { started: Some(record.waits_since().into()), ..CopyTimes::default() };
        trace_copy_ended(&context.bus, &Ended { claimed: &record, lost: true, after, executor, at }, &times);
        match &next {
            AfterCopy::Requeue(_) => count(Counter::ExecutionsRequeued, &[], 1),
            AfterCopy::GoOn(_) => {}
            AfterCopy::Finish(record) | AfterCopy::GiveUp(record) => {
                count(Counter::ExecutionsFinished, &[(Label::Outcome, "lost")], 1);
                info!(key = %execution.key, attempt = %record.attempt, "giving up an execution");
            }
        }
    }
    Ok(())
}
