//! Purges leases of executors that expired without a message: nats-server 2.15 forgets their times to live when it is
//! killed and rebuilds a stream.

use std::time::Duration;

use model::ExecutorId;
use service::ServiceError;
use tracing::{info, warn};

use crate::{Shared, losses};

/// Interval of the purge. The sweep finds lost executors with executions; this is for the others, whose
/// leases only take space.
const EVERY: Duration = Duration::from_secs(300);
const RETRY: Duration = Duration::from_secs(5);

/// Purges them at the start, after every lost connection and periodically, until the service stops.
pub(crate) async fn run(shared: Shared) -> Result<(), ServiceError> {
    let mut reconnects = shared.context.bus.reconnects();
    loop {
        let pause = match purge(&shared).await {
            Ok(()) => EVERY,
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot purge stale leases; retrying");
                RETRY
            }
        };
        tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            () = reconnects.next() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn purge(shared: &Shared) -> Result<(), losses::LossError> {
    for executor in shared.context.bus.leases().purge_stale::<ExecutorId>().await? {
        info!(%executor, "purged an expired lease that the server had kept");
        losses::lost(shared, &executor).await?;
    }
    Ok(())
}
