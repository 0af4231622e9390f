//! Executors say that they live and what they have; one scheduler of all writes it down.

use std::time::Duration;

use bus::{Encoding, Subject, decode, encode};
use bytes::Bytes;
use futures::StreamExt as _;
use index::actions::Actions;
use model::{ExecutionKey, ExecutorControl, ExecutorHeartbeat, ExecutorId, Millis};
use service::{Context, ServiceError};
use tracing::{debug, warn};

use crate::{Wakes, ask};

const QUEUE_GROUP: &str = "scheduler";

/// Takes heartbeats until the service stops.
pub(crate) async fn serve(context: Context, actions: Actions, wakes: Wakes) -> Result<(), ServiceError> {
    let client = context.bus.client();
    let failed = |error| ServiceError::failed("subscribing to heartbeats", error);
    let mut heartbeats = client
        .queue_subscribe(Subject::ExecutorHeartbeat.to_string(), QUEUE_GROUP.to_owned())
        .await
        .map_err(|error| failed(Box::new(error)))?;
    let mut reconnects = context.bus.reconnects();
    loop {
        // At the start and after a lost connection: what was said meanwhile was not heard.
        ask::now(&context).await;
        loop {
            let message = tokio::select! {
                () = context.stop.cancelled() => return Ok(()),
                () = reconnects.next() => break,
                message = heartbeats.next() => message,
            };
            let Some(message) = message else {
                return Err(ServiceError::failed("subscribing to heartbeats", "the subscription ended"));
            };
            take(&context, &actions, &wakes, &message.payload).await;
        }
    }
}

async fn take(context: &Context, actions: &Actions, wakes: &Wakes, payload: &Bytes) {
    let heartbeat: ExecutorHeartbeat = match decode(Encoding::Json, payload) {
        Ok(heartbeat) => heartbeat,
        Err(error) => {
            warn!(error = telemetry::error_chain(&error), "an executor's heartbeat cannot be read");
            return;
        }
    };
    // What it should have and does not name may be on its way for as long as an offer holds.
    let grace = Duration::from_millis(context.settings.offer_timeout_ms);
    let heard = match actions.announce(&heartbeat, payload, Millis::now(), grace).await {
        Ok(heard) => heard,
        Err(error) => {
            warn!(error = telemetry::error_chain(&error), "an executor's heartbeat was not written down");
            wakes.ask.notify_one();
            return;
        }
    };
    debug!(executor = %heartbeat.executor, news = heard.news, extra = heard.extra, "heartbeat");
    if !heard.ready {
        wakes.rebuild.notify_one();
    }
    if heard.news || !heartbeat.running.is_empty() {
        wakes.dispatch.notify_one();
    }
    for execution in heard.dead {
        cancel(context, &heartbeat.executor, execution).await;
    }
    if heard.extra > 0 {
        wakes.ask.notify_one();
    }
}

/// Tells an executor that an execution ended without it. When it is not heard, the next heartbeat shows it.
pub(crate) async fn cancel(context: &Context, executor: &ExecutorId, execution: ExecutionKey) {
    debug!(%executor, %execution, "ended without its executor, which is told");
    let subject = Subject::ExecutorControl(executor.clone()).to_string();
    let order = encode(Encoding::Json, &ExecutorControl::Cancel { execution });
    if let Err(error) = context.bus.client().publish(subject, order).await {
        debug!(%executor, %error, "an order to an executor was not sent");
    }
}
