//! Orders to this executor.

use std::sync::Arc;

use bus::{Encoding, Subject, decode};
use futures::StreamExt as _;
use model::{ExecutionKey, ExecutorControl};
use service::ServiceError;
use tracing::{debug, info, warn};

use crate::{Shared, hand_over, heartbeat};

/// Takes orders until the session ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let subject = Subject::ExecutorControl(shared.id.clone()).to_string();
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        ServiceError::failed("subscribing to orders", error)
    };
    let subscribed = shared.context.bus.client().subscribe(subject).await;
    let mut orders = subscribed.map_err(|error| failed(Box::new(error)))?;
    while let Some(message) = orders.next().await {
        match decode::<ExecutorControl>(Encoding::Json, &message.payload) {
            Ok(ExecutorControl::Cancel { execution }) => {
                tokio::spawn(cancel(shared.clone(), execution));
            }
            Ok(ExecutorControl::Drain) => {
                info!("draining: nothing new is taken");
                shared.hands.set_draining(true);
                // Who hears of what is given back must not give it to us again.
                heartbeat::send(&shared).await;
                hand_over::all(&shared).await;
            }
            Ok(ExecutorControl::Resume) => {
                info!("taking actions again");
                shared.hands.set_draining(false);
            }
            Err(error) => warn!(error = telemetry::error_chain(&error), "an order cannot be read"),
        }
    }
    Err(failed("the subscription ended".into()))
}

/// Kills an action at once: nobody wants its result, so it is not asked to end by itself first.
async fn cancel(shared: Arc<Shared>, execution: ExecutionKey) {
    if !shared.hands.has(&execution) {
        return;
    }
    // The word of the store, not the order's, says that it is over.
    match shared.context.bus.latest_execution(&execution).await {
        Ok(Some((_, record))) if record.outcome().is_none() => {
            debug!(%execution, "an order to kill an action that is still wanted is ignored");
        }
        Ok(_) => shared.hands.stop(&execution),
        Err(error) => debug!(%execution, %error, "whether the action is over is not known yet"),
    }
}
