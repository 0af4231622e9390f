//! Ends executions that have waited too long for an executor, or have nothing left to wait for.

use bus::Written;
use index::actions::Due;
use model::{ExecutionRecord, Sequence};
use policy::actions::{PoolState, overdue};
use service::{ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tracing::info;

use crate::{
    Shared,
    due::{self, DueError, PATIENCE},
};

/// Ends them until the service stops.
pub(crate) async fn run(shared: Shared) -> Result<(), ServiceError> {
    let wake = shared.wakes.overdue.clone();
    due::run(shared, Due::Expiry, &wake, end).await
}

async fn end(shared: Shared, record: ExecutionRecord, at: Sequence) -> Result<(), DueError> {
    crash_point(Step::ActionOverdueFound);
    let (key, requirements, now) =
        (record.execution.key(), &record.execution.requirements, shared.context.bus.now());
    let pools = shared.view.pools(requirements);
    let queue = shared.actions.queue(&requirements.id(), &pools, None, now).await?;
    let state = PoolState { executors: queue.executors, waiting: queue.waiting, running: queue.running };
    let Some(ended) = overdue(&record, at, state, now) else { return Ok(()) };
    if let Written::Won(_) = shared.context.bus.transition(&ended, at, PATIENCE).await? {
        service::trace_execution_ended(&shared.context.bus, &ended);
        let failed = record.so_far.failure.is_some();
        let (outcome, what) = if failed {
            ("failed", "ending an execution with the result of its failed copy")
        } else {
            ("expired", "an execution expired in the queue")
        };
        count(Counter::ExecutionsFinished, &[(Label::Outcome, outcome)], 1);
        info!(%key, %requirements, "{what}");
    }
    crash_point(Step::ActionOverdueWritten);
    Ok(())
}
