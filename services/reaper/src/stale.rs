//! Leases that expired without a message: nats-server 2.15 loses times to live when it is killed
//! and rebuilds a stream.

use std::time::Duration;

use bus::BusError;
use model::BuildKey;
use service::{Context, ServiceError};
use tracing::{info, warn};

use crate::verdict;

/// Interval of the check. The sweep finds the leases of running builds; this finds the others, which do no harm.
const EVERY: Duration = Duration::from_secs(300);
const RETRY: Duration = Duration::from_secs(5);

/// Purges them at the start, after every lost connection and at regular intervals, until the service stops.
pub(crate) async fn run(context: Context) -> Result<(), ServiceError> {
    let mut reconnects = context.bus.reconnects();
    loop {
        let pause = match purge(&context).await {
            Ok(()) => EVERY,
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot purge stale leases, retrying");
                RETRY
            }
        };
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = reconnects.next() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn purge(context: &Context) -> Result<(), BusError> {
    for key in context.bus.leases().purge_stale::<BuildKey>().await? {
        info!(%key, "purged a lease that had expired unnoticed by nats-server");
        verdict::lost(&context.bus, &key).await?;
    }
    Ok(())
}
