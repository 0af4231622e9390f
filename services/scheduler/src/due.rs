//! Handles executions that are due: ends those that waited too long, and starts a copy of those that run long.

use std::time::Duration;

use bus::{BusError, FromJson as _};
use futures::{StreamExt as _, TryStreamExt as _};
use index::{
    IndexError,
    actions::{Due, LiveExecution},
};
use model::{ExecutionRecord, Sequence};
use service::ServiceError;
use tokio::sync::Notify;
use tracing::warn;

use crate::Shared;

const BATCH: usize = 500;
const WRITES: usize = 64;
/// Timeout of one write to the stream.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Delay until another scheduler may handle an execution that this one found and did not finish.
const AGAIN: Duration = Duration::from_secs(2);

/// Why due work failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DueError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Calls `act` for every due execution whenever the dispatcher's timer wakes it, until the service stops. What fails is
/// due again after [`AGAIN`].
pub(crate) async fn run<F, Done>(shared: Shared, due: Due, wake: &Notify, act: F) -> Result<(), ServiceError>
where
    F: Fn(Shared, ExecutionRecord, Sequence) -> Done + Sync,
    Done: Future<Output = Result<(), DueError>> + Send,
{
    loop {
        tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            () = wake.notified() => {}
        }
        if let Err(error) = all(&shared, due, &act).await {
            warn!(
                error = telemetry::error_chain(&error),
                ?due,
                "cannot handle due executions; retrying later"
            );
        }
        shared.wakes.dispatch.notify_one();
    }
}

async fn all<F, Done>(shared: &Shared, due: Due, act: &F) -> Result<(), DueError>
where
    F: Fn(Shared, ExecutionRecord, Sequence) -> Done + Sync,
    Done: Future<Output = Result<(), DueError>> + Send,
{
    loop {
        let now = shared.context.bus.now();
        let found = shared.actions.due(due, now, now.after(AGAIN), BATCH).await?;
        if found.is_empty() {
            return Ok(());
        }
        let acts = found.iter().filter_map(read).map(|(record, at)| act(shared.clone(), record, at));
        futures::stream::iter(acts).buffer_unordered(WRITES).try_collect::<()>().await?;
    }
}

fn read(execution: &LiveExecution) -> Option<(ExecutionRecord, Sequence)> {
    match ExecutionRecord::from_json(&execution.record) {
        Ok(record) => Some((record, execution.sequence)),
        Err(error) => {
            warn!(key = %execution.key, %error, "cannot read a record in Redis");
            None
        }
    }
}
