//! Heartbeats of workers; one of all dispatchers writes each into the index.

use bus::{Encoding, Subject, decode};
use bytes::Bytes;
use futures::StreamExt as _;
use index::Index;
use model::Heartbeat;
use service::{Context, ServiceError};
use tracing::{debug, warn};

use crate::{Wakes, warm::Warm};

const QUEUE_GROUP: &str = "dispatcher";

/// Processes heartbeats until the service stops.
pub(crate) async fn serve(
    context: Context,
    index: Index,
    wakes: Wakes,
    warm: Warm,
) -> Result<(), ServiceError> {
    let client = context.bus.client();
    let failed = |error| ServiceError::failed("subscribing to heartbeats", error);
    let mut heartbeats = client
        .queue_subscribe(Subject::Heartbeat.to_string(), QUEUE_GROUP.to_owned())
        .await
        .map_err(|error| failed(Box::new(error)))?;
    // Each dispatcher keeps its own record of what workspaces are warm for.
    let all_heartbeats = client.subscribe(Subject::Heartbeat.to_string()).await;
    let mut all_heartbeats = all_heartbeats.map_err(|error| failed(Box::new(error)))?;
    let mut reconnects = context.bus.reconnects();
    loop {
        // Heartbeats sent before the start or during a lost connection were missed.
        if let Err(error) = client.publish(Subject::Announce.to_string(), Bytes::new()).await {
            debug!(%error, "cannot request heartbeats from the workers");
        }
        loop {
            let message = tokio::select! {
                () = context.stop.cancelled() => return Ok(()),
                () = reconnects.next() => break,
                Some(message) = all_heartbeats.next() => {
                    if let Some(heartbeat) = read(&message.payload) {
                        warm.announce(&heartbeat);
                    }
                    continue;
                }
                message = heartbeats.next() => message,
            };
            let Some(message) = message else {
                return Err(ServiceError::failed("subscribing to heartbeats", "the subscription ended"));
            };
            if let Some(heartbeat) = read(&message.payload) {
                write(&context, &index, &wakes, &heartbeat, &message.payload).await;
            }
        }
    }
}

fn read(payload: &Bytes) -> Option<Heartbeat> {
    decode(Encoding::Json, payload)
        .inspect_err(|error| warn!(error = telemetry::error_chain(error), "ignoring an unreadable heartbeat"))
        .ok()
}

async fn write(context: &Context, index: &Index, wakes: &Wakes, heartbeat: &Heartbeat, payload: &Bytes) {
    match index.announce(heartbeat, payload, context.bus.now()).await {
        Ok((ready, fresh)) => {
            debug!(worker = %heartbeat.worker, fresh, "heartbeat");
            if !ready {
                wakes.rebuild.notify_one();
            }
            if fresh > 0 {
                wakes.dispatch.notify_one();
            }
        }
        Err(error) => warn!(error = telemetry::error_chain(&error), "cannot write a heartbeat to the index"),
    }
}
