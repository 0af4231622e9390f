//! Orders to this executor: cancel, drain and resume, and stop the services of a job.

use std::sync::Arc;

use model::{ExecutionKey, ExecutorControl, StopServices};
use service::{ServiceError, Subscription, send_heartbeat};
use tracing::{debug, info};

use crate::{hand_over, shared::Shared};

/// Handles control messages until the session ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let mut orders = Subscription::<ExecutorControl>::new(&shared.context.bus, &shared.id).await?;
    loop {
        match orders.next().await?.content {
            ExecutorControl::Cancel { execution } => {
                tokio::spawn(cancel(shared.clone(), execution));
            }
            ExecutorControl::Drain => {
                info!("draining: accepting no new actions");
                shared.actions.set_draining(true);
                shared.changed.notify_one();
                // The heartbeat goes first, so that schedulers do not assign the returned actions
                // to this executor again.
                send_heartbeat(&*shared).await;
                hand_over::all(&shared).await;
            }
            ExecutorControl::Resume => {
                info!("accepting actions again");
                shared.actions.set_draining(false);
                shared.changed.notify_one();
            }
        }
    }
}

/// Handles orders to stop services of jobs until the session ends.
pub(crate) async fn serve_jobs(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let mut orders = Subscription::<StopServices>::new(&shared.context.bus, &shared.id).await?;
    loop {
        shared.services_here.stop(&orders.next().await?.content.execution);
    }
}

/// Kills an action at once. Its result is not wanted, so it gets no time to end on its own.
pub(crate) async fn cancel(shared: Arc<Shared>, execution: ExecutionKey) {
    if !shared.actions.has(&execution) {
        // Its claim may still be on the way to this executor.
        shared.cancelled.note(execution);
        return;
    }
    // The stored record decides whether it is over, not the message.
    match shared.context.bus.records().latest(&execution).await {
        Ok(Some((_, record))) if record.outcome().is_none() => {
            debug!(%execution, "ignoring the cancellation of an action that is still wanted");
        }
        Ok(_) => shared.actions.stop(&execution),
        Err(error) => debug!(%execution, %error, "cannot check yet whether the action is over"),
    }
}
