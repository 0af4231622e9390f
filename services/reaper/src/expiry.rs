//! Handles expired leases: each arrives as a message.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::{AckKind, Message};
use bus::{LeaseChange, LeaseSubject, stream};
use invariant::impossible;
use service::{Context, ServiceError, Step, crash_point};
use telemetry::metrics::{Counter, count};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use crate::verdict;

/// Time limit for expiries in progress when the service stops.
const DRAIN: Duration = Duration::from_secs(10);
const BATCH: usize = 2000;
const RETRY: Duration = Duration::from_millis(200);
/// Maximum number of expiries handled at once.
const EXPIRIES_MAX: u32 = 64;

/// Reads the lease bucket until the service stops.
pub(crate) async fn serve(context: Context) -> Result<(), ServiceError> {
    let mut queue = jetstream::open(&context.bus, stream::LEASES, jetstream::LEASE_CONSUMER).await?;
    let permits = Arc::new(Semaphore::new(EXPIRIES_MAX as usize));
    loop {
        tokio::select! {
            biased;
            () = context.stop.cancelled() => break,
            message = queue.next(|| BATCH) => accept(&context, &permits, message).await,
        }
    }
    // Another reaper receives the messages of expiries that take longer.
    let _ = tokio::time::timeout(DRAIN, permits.acquire_many(EXPIRIES_MAX)).await;
    Ok(())
}

async fn accept(context: &Context, permits: &Arc<Semaphore>, message: Message) {
    if LeaseChange::of(message.headers.as_ref()) != LeaseChange::Expired {
        acknowledge(&message).await;
        return;
    }
    let Ok(permit) = permits.clone().acquire_owned().await else {
        impossible!("the semaphore of expiries is closed");
        return;
    };
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
            acknowledge(message).await;
            return;
        }
    };
    match verdict::lost(&context.bus, &key).await {
        Ok(()) => acknowledge(message).await,
        Err(error) => {
            warn!(%key, error = telemetry::error_chain(&error), "cannot handle an expired lease, retrying");
            if let Err(error) = message.ack_with(AckKind::Nak(Some(RETRY))).await {
                debug!(%key, %error, "cannot return the message; it is delivered again later");
            }
        }
    }
}

async fn acknowledge(message: &Message) {
    if let Err(error) = message.ack().await {
        debug!(%error, "cannot acknowledge the message; it is delivered again");
    }
}
