//! Leases that ran out without a message: nats-server 2.15 forgets their times to live when it is killed and rebuilds a stream.

use std::time::Duration;

use bus::BusError;
use model::BuildKey;
use service::{Context, ServiceError};
use tracing::{info, warn};

use crate::verdict;

/// The sweep finds those of builds that run; this is for the others, which only lie there.
const EVERY: Duration = Duration::from_secs(300);
const RETRY: Duration = Duration::from_secs(5);

/// Purges them at the start, after every lost connection and once a while, until the service stops.
pub(crate) async fn run(context: Context) -> Result<(), ServiceError> {
    let mut reconnects = context.bus.reconnects();
    loop {
        let pause = match purge(&context).await {
            Ok(()) => EVERY,
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "stale leases are looked for again soon");
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
    for key in context.bus.purge_stale_leases::<BuildKey>().await? {
        info!(%key, "a lease ran out that the server had not ended");
        verdict::lost(&context.bus, &key).await?;
    }
    Ok(())
}
