//! Handles orders to this worker.

use std::sync::Arc;

use bus::{ControlReply, Received};
use model::{BuildKey, Control, Phase};
use service::{ServiceError, Subscription};
use tracing::{debug, info};

use crate::{shared::Shared, stop::Cause};

/// Handles orders until the worker ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let mut orders = Subscription::<Control>::new(&shared.context.bus, &shared.id).await?;
    loop {
        tokio::spawn(handle(shared.clone(), orders.next().await?));
    }
}

async fn handle(shared: Arc<Shared>, order: Received<Control>) {
    let (order, answering) = order.split();
    match order {
        Control::Measure { group, id, attempt } => {
            let measured = shared.usage.of_now(&group, id, attempt).await;
            if let Some(used) = measured {
                answering.send(&ControlReply::Used(used)).await;
            }
            return;
        }
        Control::Drain => {
            info!("draining: accepting no new builds");
            shared.workspaces.set_draining(true);
        }
        Control::Resume => {
            info!("accepting builds again");
            shared.workspaces.set_draining(false);
        }
        Control::Cancel { group, id, attempt } => {
            let key = BuildKey { group, id };
            if let Some(stop) = shared.workspaces.stop_of(&key, attempt) {
                // The record in the log decides whether the run is over, not the order.
                match shared.context.bus.records().latest(&key).await {
                    Ok(Some((_, record))) if record.attempt == attempt && runs(&record.phase) => {
                        debug!(%key, "ignoring an order to kill a build that still runs");
                    }
                    Ok(_) => stop.now(Cause::EndedElsewhere),
                    Err(error) => debug!(%key, %error, "cannot check whether the build has ended"),
                }
            }
        }
    }
    answering.send(&ControlReply::Received {}).await;
}

fn runs(phase: &Phase) -> bool {
    match phase {
        Phase::InProgress { .. } => true,
        Phase::Enqueued | Phase::Finished { .. } => false,
    }
}
