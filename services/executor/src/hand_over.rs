//! Returns actions that were not started to the schedulers.

use model::{ExecutionKey, HandOver};
use tracing::info;

use crate::shared::Shared;

/// Returns everything that did not start, in one message: claimed actions that wait for room, and reservations.
pub(crate) async fn all(shared: &Shared) {
    let claimed = shared.actions.remove_all_waiting();
    let reserved = shared.queue.lock().take_all();
    give_back(shared, claimed, reserved).await;
}

/// Returns these executions. If the message is lost, the schedulers notice that heartbeats do not name them.
pub(crate) async fn give_back(shared: &Shared, claimed: Vec<ExecutionKey>, reserved: Vec<ExecutionKey>) {
    if claimed.is_empty() && reserved.is_empty() {
        return;
    }
    info!(claimed = claimed.len(), reserved = reserved.len(), "returning actions that did not start");
    let (executor, pool) = (shared.id.clone(), shared.pool.name.clone());
    let returned = HandOver { executor, pool, claimed, reserved };
    shared.context.bus.send_or_log(&(), &returned).await;
}
