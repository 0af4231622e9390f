//! Heartbeats of workers; one of all dispatchers writes each into the index.

use bus::{Received, Subject};
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
    let what = "subscribing to heartbeats";
    let heartbeats = context.bus.listen_in::<Heartbeat>(&(), QUEUE_GROUP).await;
    let mut heartbeats = heartbeats.map_err(|error| ServiceError::failed(what, error))?;
    // Each dispatcher keeps its own record of what workspaces are warm for.
    let all_heartbeats = context.bus.listen::<Heartbeat>(&()).await;
    let mut all_heartbeats = all_heartbeats.map_err(|error| ServiceError::failed(what, error))?;
    let mut reconnects = context.bus.reconnects();
    loop {
        // Heartbeats sent before the start or during a lost connection were missed.
        if let Err(error) = context.bus.signal(&Subject::Announce).await {
            let error = telemetry::error_chain(&error);
            debug!(error, "cannot request heartbeats from the workers");
        }
        loop {
            let heartbeat = tokio::select! {
                () = context.stop.cancelled() => return Ok(()),
                () = reconnects.next() => break,
                Some(heartbeat) = all_heartbeats.next() => {
                    warm.announce(&heartbeat.content);
                    continue;
                }
                heartbeat = heartbeats.next() => heartbeat,
            };
            let Some(heartbeat) = heartbeat else {
                return Err(ServiceError::failed(what, "the subscription ended"));
            };
            write(&context, &index, &wakes, &heartbeat).await;
        }
    }
}

async fn write(context: &Context, index: &Index, wakes: &Wakes, received: &Received<Heartbeat>) {
    let heartbeat = &received.content;
    match index.announce(heartbeat, &received.json, context.bus.now()).await {
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
