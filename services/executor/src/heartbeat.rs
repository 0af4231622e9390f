//! Heartbeats of the executor: at long intervals, and at once after a change that the schedulers must know.

use std::{sync::Arc, time::Duration};

use bus::{Subject, millis};
use model::{ExecutorHeartbeat, ExecutorStatus};
use service::ServiceError;

use crate::{held_actions::ExecutorLoad, shared::Shared};

/// Sends heartbeats until the session ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        ServiceError::failed("subscribing to announcements", error)
    };
    let subscribed = shared.context.bus.signals(&Subject::ExecutorAnnounce).await;
    let mut asked = subscribed.map_err(|error| failed(Box::new(error)))?;
    let mut reconnects = shared.context.bus.reconnects();
    let every = Duration::from_secs(shared.context.settings.heartbeat_seconds);
    loop {
        send(&shared).await;
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = shared.actions.announce.notified() => {}
            () = reconnects.next() => {}
            signal = asked.next() => {
                if signal.is_none() {
                    return Err(failed("the subscription ended".into()));
                }
                // New schedulers may have work.
                shared.actions.free_room.notify_one();
            }
        }
    }
}

/// Sends one heartbeat now.
pub(crate) async fn send(shared: &Shared) {
    publish(shared, shared.actions.status()).await;
}

/// Sends the last heartbeat, with the status `Gone`.
pub(crate) async fn send_gone(shared: &Shared) {
    publish(shared, ExecutorStatus::Gone).await;
    // Schedulers that miss this heartbeat learn of the end from the released lease.
    let _ = shared.context.bus.flush(Duration::from_secs(1)).await;
}

async fn publish(shared: &Shared, status: ExecutorStatus) {
    shared.context.bus.send_or_log(&(), &content(shared, status)).await;
}

/// The content of a heartbeat.
pub(crate) fn content(shared: &Shared, status: ExecutorStatus) -> ExecutorHeartbeat {
    let every = Duration::from_secs(shared.context.settings.heartbeat_seconds);
    let ExecutorLoad { slots, capacity, held, window } = shared.actions.load();
    ExecutorHeartbeat {
        executor: shared.id.clone(),
        pool: shared.pool.name.clone(),
        home: shared.home.clone(),
        host: shared.host.clone(),
        pid: std::process::id(),
        started_at_ms: shared.started_at,
        status,
        slots,
        capacity,
        held,
        running: shared.actions.keys(),
        queued: u32::try_from(shared.queue.lock().len()).unwrap_or(u32::MAX),
        window,
        ttl_ms: millis(every * 3),
        clock_skew_ms: shared.context.bus.clock().skew(),
    }
}
