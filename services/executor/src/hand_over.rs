//! Giving back what was not started.

use bus::{Encoding, Subject, encode};
use model::{ExecutionKey, HandOver};
use tracing::{debug, info};

use crate::Shared;

/// Gives back all that did not begin, in one message: what is in hand and waits for room, and what was only told of.
pub(crate) async fn all(shared: &Shared) {
    let claimed = shared.hands.put_down_waiting();
    let reserved = shared.queue().take_all();
    give_back(shared, claimed, reserved).await;
}

/// Gives back this. Where the message is lost, the schedulers find that heartbeats do not name it.
pub(crate) async fn give_back(shared: &Shared, claimed: Vec<ExecutionKey>, reserved: Vec<ExecutionKey>) {
    if claimed.is_empty() && reserved.is_empty() {
        return;
    }
    info!(claimed = claimed.len(), reserved = reserved.len(), "giving back what did not begin");
    let (executor, pool) = (shared.id.clone(), shared.pool.name.clone());
    let payload = encode(Encoding::Json, &HandOver { executor, pool, claimed, reserved });
    let subject = Subject::ExecutorHandOver.to_string();
    if let Err(error) = shared.context.bus.client().publish(subject, payload).await {
        debug!(%error, "what did not begin was not given back; heartbeats tell of it");
    }
}
