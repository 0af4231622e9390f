//! Handles expired leases: each arrives as a message.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::{AckKind, Message};
use bus::{LeaseChange, LeaseSubject, stream};
use service::{Context, ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, count};
use tokio::sync::Semaphore;
use tracing::warn;

use crate::verdict;

/// Time limit for expiries in progress when the service stops.
const DRAIN: Duration = Duration::from_secs(10);
const BATCH: usize = 2000;
const RETRY: Duration = Duration::from_millis(200);
/// Maximum number of expiries handled at once.
const HANDS: usize = 64;

/// Reads the lease bucket until the service stops.
pub(crate) async fn serve(context: Context) -> Result<(), ServiceError> {
    let mut queue = jetstream::open(&context.bus, stream::LEASES, jetstream::LEASE_CONSUMER).await?;
    let hands = Arc::new(Semaphore::new(HANDS));
    loop {
        tokio::select! {
            biased;
            () = context.stop.cancelled() => break,
            message = queue.next(|| BATCH) => take(&context, &hands, message).await,
        }
    }
    let all = u32::try_from(HANDS).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(DRAIN, hands.acquire_many(all)).await;
    Ok(())
}

async fn take(context: &Context, hands: &Arc<Semaphore>, message: Message) {
    if LeaseChange::of(message.headers.as_ref()) != LeaseChange::Expired {
        let _ = message.ack().await;
        return;
    }
    let Ok(permit) = hands.clone().acquire_owned().await else { return };
    let context = context.clone();
    tokio::spawn(async move {
        handle(&context, &message).await;
        drop(permit);
    });
}

async fn handle(context: &Context, message: &Message) {
    crash_point(Step::ExpiryHeard);
    count(Counter::LeasesExpired, &[], 1);
    let key = match message.subject.as_str().parse::<LeaseSubject>() {
        Ok(LeaseSubject(key)) => key,
        Err(error) => {
            warn!(%error, "cannot parse the subject of an expired lease");
            let _ = message.ack().await;
            return;
        }
    };
    match verdict::lost(&context.bus, &key).await {
        Ok(()) => {
            let _ = message.ack().await;
        }
        Err(error) => {
            warn!(%key, error = telemetry::error_chain(&error), "cannot handle an expired lease, retrying");
            let _ = message.ack_with(AckKind::Nak(Some(RETRY))).await;
        }
    }
}
