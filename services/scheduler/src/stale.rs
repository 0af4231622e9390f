//! Leases of executors that ran out without a message: nats-server 2.15 forgets their times to live when it is killed and
//! rebuilds a stream.

use std::time::Duration;

use model::ExecutorId;
use service::ServiceError;
use tracing::{info, warn};

use crate::{Shared, losses};

/// The sweep finds those that have something in hand; this is for the others, which only lie there.
const EVERY: Duration = Duration::from_secs(300);
const RETRY: Duration = Duration::from_secs(5);

/// Purges them at the start, after every lost connection and once a while, until the service stops.
pub(crate) async fn run(shared: Shared) -> Result<(), ServiceError> {
    let mut reconnects = shared.context.bus.reconnects();
    loop {
        let pause = match purge(&shared).await {
            Ok(()) => EVERY,
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "stale leases are looked for again soon");
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
    for executor in shared.context.bus.purge_stale_leases::<ExecutorId>().await? {
        info!(%executor, "the lease of an executor ran out that the server had not ended");
        losses::lost(shared, &executor).await?;
    }
    Ok(())
}
