//! Executions that have waited too long for an executor.

use std::time::Duration;

use bus::{BusError, Encoding, Written, decode};
use futures::{StreamExt as _, TryStreamExt as _};
use index::{
    IndexError,
    actions::{Due, LiveExecution},
};
use model::{ExecutionRecord, Millis};
use policy::actions::{PoolState, overdue};
use service::{ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tracing::{info, warn};

use crate::Shared;

const BATCH: usize = 500;
const WRITES: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);
/// When another scheduler may try what this one found and did not end.
const AGAIN: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
enum OverdueError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Ends them until the service stops; woken by the dispatcher's timer, which runs while something waits.
pub(crate) async fn run(shared: Shared) -> Result<(), ServiceError> {
    loop {
        tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            () = shared.wakes.overdue.notified() => {}
        }
        if let Err(error) = end_all(&shared).await {
            warn!(error = telemetry::error_chain(&error), "overdue executions are looked at again soon");
        }
        shared.wakes.dispatch.notify_one();
    }
}

async fn end_all(shared: &Shared) -> Result<(), OverdueError> {
    loop {
        let now = Millis::now();
        let found = shared.actions.due(Due::Expiry, now, now.after(AGAIN), BATCH).await?;
        if found.is_empty() {
            return Ok(());
        }
        crash_point(Step::ActionOverdueFound);
        let writes = found.into_iter().map(|execution| end(shared, execution, now));
        futures::stream::iter(writes).buffer_unordered(WRITES).try_collect::<()>().await?;
    }
}

async fn end(shared: &Shared, execution: LiveExecution, now: Millis) -> Result<(), OverdueError> {
    let record: ExecutionRecord = match decode(Encoding::Json, &execution.record) {
        Ok(record) => record,
        Err(error) => {
            warn!(key = %execution.key, %error, "redis holds a record that cannot be read");
            return Ok(());
        }
    };
    let queue = shared.actions.queue(&record.execution.pool, None, now).await?;
    let state = PoolState { executors: queue.executors, waiting: queue.waiting, running: queue.running };
    let Some(ended) = overdue(&record, execution.sequence, state, now) else { return Ok(()) };
    if let Written::Won(_) = shared.context.bus.transition(&ended, execution.sequence, PATIENCE).await? {
        count(Counter::ExecutionsFinished, &[(Label::Outcome, "expired")], 1);
        info!(key = %execution.key, pool = %record.execution.pool, "an execution waited too long");
    }
    crash_point(Step::ActionOverdueWritten);
    Ok(())
}
