//! Starting one copy more of executions that take long.

use std::time::Duration;

use bus::{BusError, Encoding, Written, decode};
use futures::{StreamExt as _, TryStreamExt as _};
use index::{
    IndexError,
    actions::{Due, LiveExecution},
};
use model::{ExecutionRecord, Millis};
use service::{ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, count};
use tracing::{debug, warn};

use crate::Shared;

const BATCH: usize = 500;
const WRITES: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);
/// When another scheduler may try what this one found and did not write.
const AGAIN: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
enum HedgeError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Starts them until the service stops; woken by the dispatcher's timer.
pub(crate) async fn run(shared: Shared) -> Result<(), ServiceError> {
    loop {
        tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            () = shared.wakes.hedge.notified() => {}
        }
        if let Err(error) = hedge_all(&shared).await {
            warn!(error = telemetry::error_chain(&error), "copies of slow executions are started later");
        }
        shared.wakes.dispatch.notify_one();
    }
}

async fn hedge_all(shared: &Shared) -> Result<(), HedgeError> {
    loop {
        let now = Millis::now();
        let found = shared.actions.due(Due::Hedge, now, now.after(AGAIN), BATCH).await?;
        if found.is_empty() {
            return Ok(());
        }
        crash_point(Step::ActionHedgeFound);
        let writes = found.into_iter().map(|execution| hedge(shared, execution));
        futures::stream::iter(writes).buffer_unordered(WRITES).try_collect::<()>().await?;
    }
}

async fn hedge(shared: &Shared, execution: LiveExecution) -> Result<(), BusError> {
    let record: ExecutionRecord = match decode(Encoding::Json, &execution.record) {
        Ok(record) => record,
        Err(error) => {
            warn!(key = %execution.key, %error, "redis holds a record that cannot be read");
            return Ok(());
        }
    };
    if record.outcome().is_some() {
        return Ok(());
    }
    let next = record.hedged(execution.sequence, Millis::now());
    // Whoever wrote another record first knows better.
    if let Written::Won(_) = shared.context.bus.transition(&next, execution.sequence, PATIENCE).await? {
        count(Counter::ExecutionsHedged, &[], 1);
        debug!(key = %execution.key, copies = next.copies(), "one copy more of a slow execution");
    }
    Ok(())
}
