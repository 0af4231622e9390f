//! Sends heartbeats with the state of the workspaces: periodically, and at once when the dispatchers' view
//! is out of date.

use std::{sync::Arc, time::Duration};

use bus::{Subject, millis};
use model::{Heartbeat, WorkerStatus, WorkspaceState};
use service::ServiceError;
use telemetry::metrics::{Gauge, Label, set};

use crate::shared::Shared;

/// Sends heartbeats until the worker ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        ServiceError::failed("subscribing to announcements", error)
    };
    let subscribed = shared.context.bus.signals(&Subject::Announce).await;
    let mut asked = subscribed.map_err(|error| failed(Box::new(error)))?;
    let mut reconnects = shared.context.bus.reconnects();
    let every = Duration::from_secs(shared.context.settings.heartbeat_seconds);
    loop {
        send(&shared).await;
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = shared.workspaces.announce.notified() => {}
            () = reconnects.next() => {}
            signal = asked.next() => {
                if signal.is_none() {
                    return Err(failed("the subscription ended".into()));
                }
            }
        }
    }
}

/// Sends one heartbeat now.
pub(crate) async fn send(shared: &Shared) {
    publish_status(shared, shared.workspaces.status()).await;
}

/// Sends the final heartbeat: the worker is gone.
pub(crate) async fn send_gone(shared: &Shared) {
    publish_status(shared, WorkerStatus::Gone).await;
    // If the heartbeat does not arrive, the worker leaves the index when its time to live ends.
    let _ = shared.context.bus.flush(Duration::from_secs(1)).await;
}

async fn publish_status(shared: &Shared, status: WorkerStatus) {
    let every = Duration::from_secs(shared.context.settings.heartbeat_seconds);
    let workspaces = shared.workspaces.states();
    let idle = workspaces.iter().filter(|state| matches!(state, WorkspaceState::Idle { .. })).count();
    let gauge = |state, count: usize| {
        set(Gauge::Workspaces, &[(Label::State, state)], i64::try_from(count).unwrap_or(i64::MAX));
    };
    gauge("idle", idle);
    gauge("busy", workspaces.len() - idle);
    let heartbeat = Heartbeat {
        worker: shared.id.clone(),
        host: shared.host.clone(),
        pid: std::process::id(),
        started_at_ms: shared.started_at,
        status,
        short: shared.workspaces.shortage(),
        workspaces,
        ttl_ms: millis(every * 3),
        clock_skew_ms: shared.context.bus.clock().skew(),
    };
    shared.context.bus.send_or_log(&(), &heartbeat).await;
}
