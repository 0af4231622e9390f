//! Receives executors' heartbeats: one scheduler writes each to the index, and every scheduler records how
//! full the executors are.

use std::time::Duration;

use bus::{Encoding, Subject, decode, encode};
use bytes::Bytes;
use futures::StreamExt as _;
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
    let client = context.bus.client();
    let failed = |error| ServiceError::failed("subscribing to heartbeats", error);
    let mut heartbeats = client
        .queue_subscribe(Subject::ExecutorHeartbeat.to_string(), QUEUE_GROUP.to_owned())
        .await
        .map_err(|error| failed(Box::new(error)))?;
    let mut reconnects = context.bus.reconnects();
    loop {
        // Messages sent before the start or while the connection was lost were not received.
        ask::ask_all(context).await;
        loop {
            let message = tokio::select! {
                () = context.stop.cancelled() => return Ok(()),
                () = reconnects.next() => break,
                message = heartbeats.next() => message,
            };
            let Some(message) = message else {
                return Err(ServiceError::failed("subscribing to heartbeats", "the subscription ended"));
            };
            apply(&shared, &message.payload).await;
        }
    }
}

/// Receives all heartbeats, including those that another scheduler writes to the index.
pub(crate) async fn follow(shared: Shared) -> Result<(), ServiceError> {
    let failed = |error| ServiceError::failed("listening to heartbeats", error);
    let subscribed = shared.context.bus.client().subscribe(Subject::ExecutorHeartbeat.to_string()).await;
    let mut heartbeats = subscribed.map_err(|error| failed(Box::new(error)))?;
    // Executors that are already live announce themselves once when asked; new ones announce
    // themselves when they start.
    ask::ask_all(&shared.context).await;
    loop {
        let message = tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            message = heartbeats.next() => message,
        };
        let Some(message) = message else {
            return Err(ServiceError::failed("listening to heartbeats", "the subscription ended"));
        };
        // The scheduler that writes the heartbeat to the index reports one that cannot be read.
        if let Ok(heartbeat) = decode::<ExecutorHeartbeat>(Encoding::Json, &message.payload) {
            shared.view.heartbeat(&heartbeat);
        }
    }
}

async fn apply(shared: &Shared, payload: &Bytes) {
    let (context, wakes) = (&shared.context, &shared.wakes);
    let heartbeat: ExecutorHeartbeat = match decode(Encoding::Json, payload) {
        Ok(heartbeat) => heartbeat,
        Err(error) => {
            warn!(error = telemetry::error_chain(&error), "ignoring a heartbeat that cannot be read");
            return;
        }
    };
    let heard = match shared.actions.announce(&heartbeat, payload, context.bus.now(), GRACE).await {
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
    let subject = Subject::ExecutorControl(executor.clone()).to_string();
    let order = encode(Encoding::Json, &ExecutorControl::Cancel { execution });
    if let Err(error) = context.bus.client().publish(subject, order).await {
        debug!(%executor, %error, "cannot send an order to an executor");
    }
}
