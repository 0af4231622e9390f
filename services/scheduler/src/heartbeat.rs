//! Receives executors' heartbeats: one scheduler writes each to the index, and every scheduler records how
//! full the executors are.

use std::time::Duration;

use bus::Received;
use model::{ExecutionKey, ExecutorControl, ExecutorHeartbeat, ExecutorId, Millis, WaitAgain};
use service::{Context, Heartbeats, ServiceError, Subscription, request_heartbeats};
use tracing::{debug, warn};

use crate::{Shared, messages};

const QUEUE_GROUP: &str = "scheduler";
/// How long an execution that an executor should have and does not name may be in flight.
const GRACE: Duration = Duration::from_millis(1500);

/// Receives heartbeats until the service stops, and writes them to the index.
pub(crate) async fn serve(shared: Shared) -> Result<(), ServiceError> {
    let mut heartbeats = Heartbeats::<ExecutorHeartbeat>::subscribe(&shared.context, QUEUE_GROUP).await?;
    while let Some(heartbeat) = heartbeats.next().await? {
        apply(&shared, &heartbeat).await;
    }
    Ok(())
}

/// Receives all heartbeats, including those that another scheduler writes to the index. A loop of its own, because the
/// view must not wait for Redis.
pub(crate) async fn follow(shared: Shared) -> Result<(), ServiceError> {
    let Context { bus, stop, .. } = &shared.context;
    let mut heartbeats = Subscription::<ExecutorHeartbeat>::new(bus, &()).await?;
    // Executors that are already live announce themselves once when asked; new ones announce
    // themselves when they start.
    request_heartbeats::<ExecutorHeartbeat>(bus).await;
    loop {
        let heartbeat = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            heartbeat = heartbeats.next() => heartbeat?,
        };
        shared.view.heartbeat(&heartbeat.content);
        if heartbeat.content.room.is_open() {
            shared.wake();
        }
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
    messages::announce_requeued(shared, WaitAgain { requirements: heard.again }).await;
    let now = context.bus.now();
    let due: Vec<(ExecutionKey, Millis)> = heard
        .found
        .into_iter()
        .filter_map(|(execution, demand)| Some((execution, shared.hedge_at(&demand, now)?)))
        .collect();
    if let Err(error) = shared.actions.hedge_at(&due).await {
        warn!(error = telemetry::error_chain(&error), "cannot schedule copies of running executions");
    }
    if heartbeat.room.is_open() || !heartbeat.running.is_empty() {
        shared.wake();
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
