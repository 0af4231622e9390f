//! Starting one copy more of executions that take long.

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

/// Starts them until the service stops.
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
    // Whoever wrote another record first knows better.
    if let Written::Won(_) = shared.context.bus.transition(&next, at, PATIENCE).await? {
        count(Counter::ExecutionsHedged, &[], 1);
        debug!(key = %next.execution.key(), copies = next.copies(), "one copy more of a slow execution");
    }
    Ok(())
}
