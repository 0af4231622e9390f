//! Handles orders to this worker.

use std::sync::Arc;

use async_nats::Message;
use bus::{Encoding, Subject, decode, encode};
use bytes::Bytes;
use futures::StreamExt as _;
use model::{BuildKey, Control, Phase};
use service::ServiceError;
use tracing::{debug, info, warn};

use crate::{Shared, stop::Cause};

/// Handles orders until the worker ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let subject = Subject::Control(shared.id.clone()).to_string();
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        ServiceError::failed("subscribing to orders", error)
    };
    let subscribed = shared.context.bus.client().subscribe(subject).await;
    let mut orders = subscribed.map_err(|error| failed(Box::new(error)))?;
    while let Some(message) = orders.next().await {
        tokio::spawn(handle(shared.clone(), message));
    }
    Err(failed("the subscription ended".into()))
}

async fn handle(shared: Arc<Shared>, message: Message) {
    let order = match decode::<Control>(Encoding::Json, &message.payload) {
        Ok(order) => order,
        Err(error) => {
            warn!(error = telemetry::error_chain(&error), "cannot decode an order");
            return;
        }
    };
    match order {
        Control::Measure { group, id, attempt } => {
            let measured = shared.usage.of_now(&group, id, attempt).await;
            if let (Some(used), Some(reply)) = (measured, message.reply) {
                answer(&shared, reply, encode(Encoding::Json, &used)).await;
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
                match shared.context.bus.latest(&key).await {
                    Ok(Some((_, record))) if record.attempt == attempt && runs(&record.phase) => {
                        debug!(%key, "ignoring an order to kill a build that still runs");
                    }
                    Ok(_) => stop.now(Cause::EndedElsewhere),
                    Err(error) => debug!(%key, %error, "cannot check whether the build has ended"),
                }
            }
        }
    }
    if let Some(reply) = message.reply {
        answer(&shared, reply, Bytes::from_static(b"{}")).await;
    }
}

async fn answer(shared: &Shared, reply: async_nats::Subject, payload: Bytes) {
    if let Err(error) = shared.context.bus.client().publish(reply, payload).await {
        debug!(%error, "cannot answer an order");
    }
}

fn runs(phase: &Phase) -> bool {
    match phase {
        Phase::InProgress { .. } => true,
        Phase::Enqueued | Phase::Finished { .. } => false,
    }
}
