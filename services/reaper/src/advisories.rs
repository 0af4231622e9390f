//! Counts what nats-server reports about streams and consumers.

use bus::AdvisoryKind;
use service::{Context, ServiceError};
use telemetry::metrics::{Counter, Label, count, expect};
use tracing::{debug, warn};

/// Counts advisories until the service stops. Each is counted by one reaper.
pub(crate) async fn count_all(context: Context) -> Result<(), ServiceError> {
    for kind in AdvisoryKind::ALL {
        expect(Counter::BusAdvisories, &[(Label::Kind, kind.as_str())]);
    }
    let mut advisories = match context.bus.advisories().await {
        Ok(advisories) => advisories,
        Err(error) => {
            // Only the metric is missing then.
            warn!(error = telemetry::error_chain(&error), "advisories of nats-server are not counted");
            return Ok(());
        }
    };
    while let Some(Some(kind)) = context.stop.run_until_cancelled(advisories.next()).await {
        debug!(kind = kind.as_str(), "nats-server reports an event of a stream or a consumer");
        count(Counter::BusAdvisories, &[(Label::Kind, kind.as_str())], 1);
    }
    Ok(())
}
