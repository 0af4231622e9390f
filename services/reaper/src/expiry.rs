//! Handles expired leases: each arrives as a message.

use std::time::Duration;

use bus::{Delivery, Handled, LeaseChange, LeaseSubject, Limits, Published, stream};
use service::{Context, ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, count};
use tracing::warn;

use crate::verdict;

const LIMITS: Limits = Limits { at_once: 64, batch: Some(2000), drain: Duration::from_secs(10) };

/// Reads the lease bucket until the service stops.
pub(crate) async fn serve(context: Context) -> Result<(), ServiceError> {
    let queue = jetstream::open(&context.bus, stream::LEASES, jetstream::LEASE_CONSUMER).await?;
    let has_expired = |message: &Published| message.lease_change() == LeaseChange::Expired;
    let handle = |delivery: Delivery| {
        let context = context.clone();
        async move { handle(&context, &delivery.message).await }
    };
    queue.serve(LIMITS, &context.stop, has_expired, handle).await;
    Ok(())
}

async fn handle(context: &Context, message: &Published) -> Handled {
    crash_point(Step::ExpiryHeard);
    count(Counter::LeasesExpired, &[], 1);
    let key = match message.subject().parse::<LeaseSubject>() {
        Ok(LeaseSubject(key)) => key,
        Err(error) => {
            warn!(%error, "cannot parse the subject of an expired lease");
            return Handled::Done;
        }
    };
    match verdict::lost(&context.bus, &key).await {
        Ok(()) => Handled::Done,
        Err(error) => {
            warn!(%key, error = telemetry::error_chain(&error), "cannot handle an expired lease, retrying");
            Handled::Again
        }
    }
}
