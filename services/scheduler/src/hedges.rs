//! Starts an additional copy of executions that run long.

use bus::Written;
use index::actions::Due;
use model::{ExecutionRecord, Sequence};
use service::{ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, count};
use tracing::debug;

use crate::{
    Shared,
    due::{self, DueError, PATIENCE},
};

/// Starts the copies until the service stops.
pub(crate) async fn run(shared: Shared) -> Result<(), ServiceError> {
    let wake = shared.wakes.hedge.clone();
    due::run(shared, Due::Hedge, &wake, hedge).await
}

async fn hedge(shared: Shared, record: ExecutionRecord, at: Sequence) -> Result<(), DueError> {
    crash_point(Step::ActionHedgeFound);
    if record.outcome().is_some() {
        return Ok(());
    }
    let next = record.hedged(at, shared.context.bus.now());
    // If another record was written first, that one is newer and remains.
    if let Written::Won(_) = shared.context.bus.transition(&next, at, PATIENCE).await? {
        count(Counter::ExecutionsHedged, &[], 1);
        debug!(key = %next.execution.key(), copies = next.copies(), "starting another copy of a slow execution");
    }
    Ok(())
}
