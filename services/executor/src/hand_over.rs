//! Returns actions that were not started to the schedulers.

use model::{ExecutionKey, HandOver};
use tracing::info;

use crate::shared::Shared;

/// Returns all actions that wait for room, in one message.
pub(crate) async fn all(shared: &Shared) {
    give_back(shared, shared.actions.remove_all_waiting()).await;
}

/// Returns these executions. If the message is lost, the schedulers notice that heartbeats do not name them.
pub(crate) async fn give_back(shared: &Shared, claimed: Vec<ExecutionKey>) {
    if claimed.is_empty() {
        return;
    }
    info!(claimed = claimed.len(), "returning actions that did not start");
    let executor = shared.id.clone();
    shared.context.bus.send_or_log(&(), &HandOver { executor, claimed }).await;
}
