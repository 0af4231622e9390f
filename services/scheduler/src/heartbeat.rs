//! Receives executors' heartbeats: one scheduler writes each to the index, and every scheduler records how
//! full the executors are.

use std::time::Duration;

use bus::Received;
use model::{ClaimRequest, ExecutionKey, ExecutorControl, ExecutorHeartbeat, ExecutorId, Millis, WaitAgain};
use service::{Context, ServiceError};
use tracing::{debug, warn};

use crate::{Shared, ask, claims};

const QUEUE_GROUP: &str = "scheduler";
/// How long an execution that an executor should have and does not name may be in flight: as long as the executor waits
/// for an answer, plus a margin.
const GRACE: Duration = ClaimRequest::PATIENCE.saturating_add(Duration::from_millis(500));

/// Receives heartbeats until the service stops, and writes them to the index.
pub(crate) async fn serve(shared: Shared) -> Result<(), ServiceError> {
    let context = &shared.context;
    let what = "subscribing to heartbeats";
    let listening = context.bus.listen_in::<ExecutorHeartbeat>(&(), QUEUE_GROUP).await;
    let mut heartbeats = listening.map_err(|error| ServiceError::failed(what, error))?;
    let mut reconnects = context.bus.reconnects();
    loop {
        // Messages sent before the start or while the connection was lost were not received.
        ask::ask_all(context).await;
        loop {
            let heartbeat = tokio::select! {
                () = context.stop.cancelled() => return Ok(()),
                () = reconnects.next() => break,
                heartbeat = heartbeats.next() => heartbeat,
            };
            let Some(heartbeat) = heartbeat else {
                return Err(ServiceError::failed(what, "the subscription ended"));
            };
            apply(&shared, &heartbeat).await;
        }
    }
}

/// Receives all heartbeats, including those that another scheduler writes to the index.
pub(crate) async fn follow(shared: Shared) -> Result<(), ServiceError> {
    let what = "listening to heartbeats";
    let listening = shared.context.bus.listen::<ExecutorHeartbeat>(&()).await;
    let mut heartbeats = listening.map_err(|error| ServiceError::failed(what, error))?;
    // Executors that are already live announce themselves once when asked; new ones announce
    // themselves when they start.
    ask::ask_all(&shared.context).await;
    loop {
        let heartbeat = tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            heartbeat = heartbeats.next() => heartbeat,
        };
        let Some(heartbeat) = heartbeat else {
            return Err(ServiceError::failed(what, "the subscription ended"));
        };
        shared.view.heartbeat(&heartbeat.content);
    }
}

async fn apply(shared: &Shared, received: &Received<ExecutorHeartbeat>) {
    let heartbeat = &received.content;
    let (context, wakes) = (&shared.context, &shared.wakes);
    let heard = match shared.actions.announce(heartbeat, &received.json, context.bus.now(), GRACE).await {
        Ok(heard) => heard,
        Err(error) => {
            warn!(error = telemetry::error_chain(&error), "cannot write a heartbeat to the index");
            wakes.ask.notify_one();
            return;
        }
    };
    debug!(executor = %heartbeat.executor, again = heard.again.len(), "heartbeat");
    if !heard.ready {
        wakes.rebuild.notify_one();
    }
    claims::announce_requeued(shared, WaitAgain { pool: heartbeat.pool.clone(), executions: heard.again })
        .await;
    let now = context.bus.now();
    let due: Vec<(ExecutionKey, Millis)> = heard
        .found
        .into_iter()
        .filter_map(|(execution, demand)| Some((execution, shared.hedge_at(&demand, now)?)))
        .collect();
    if let Err(error) = shared.actions.hedge_at(&due).await {
        warn!(error = telemetry::error_chain(&error), "cannot schedule copies of running executions");
    }
    if !heartbeat.running.is_empty() {
        wakes.dispatch.notify_one();
    }
    for execution in heard.dead {
        cancel(context, &heartbeat.executor, execution).await;
    }
}

/// Tells an executor to cancel an execution that ended without it. If the message is lost, the next
/// heartbeat reveals that again.
pub(crate) async fn cancel(context: &Context, executor: &ExecutorId, execution: ExecutionKey) {
    debug!(%executor, %execution, "cancelling an execution that ended without its executor");
    if let Err(error) = context.bus.send(executor, &ExecutorControl::Cancel { execution }).await {
        debug!(%executor, error = telemetry::error_chain(&error), "cannot send an order to an executor");
    }
}
