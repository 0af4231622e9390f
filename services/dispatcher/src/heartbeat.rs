//! Heartbeats of workers; one of all dispatchers writes each into the index.

use bus::Received;
use index::Index;
use model::Heartbeat;
use service::{Context, Heartbeats, ServiceError, Subscription, request_heartbeats};
use tracing::{debug, warn};

use crate::{Wakes, workers::Workers};

const QUEUE_GROUP: &str = "dispatcher";

/// Processes heartbeats until the service stops.
pub(crate) async fn serve(
    context: Context,
    index: Index,
    wakes: Wakes,
    workers: Workers,
) -> Result<(), ServiceError> {
    let mut heartbeats = Heartbeats::<Heartbeat>::subscribe(&context, QUEUE_GROUP).await?;
    // Each dispatcher keeps its own record of workers.
    let mut all_heartbeats = Subscription::<Heartbeat>::new(&context.bus, &()).await?;
    // What was announced before is known to other dispatchers only.
    request_heartbeats::<Heartbeat>(&context.bus).await;
    loop {
        let heartbeat = tokio::select! {
            heartbeat = heartbeats.next() => heartbeat?,
            heartbeat = all_heartbeats.next() => {
                // The copy that is written to the index may have woken the dispatch before.
                if workers.announce(&heartbeat?.content) {
                    wakes.dispatch.notify_one();
                }
                continue;
            }
        };
        let Some(heartbeat) = heartbeat else { return Ok(()) };
        write(&context, &index, &wakes, &heartbeat).await;
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
