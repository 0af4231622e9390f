//! Requests of executors for work: each goes to one scheduler, and waits there for the next pass.

use async_nats::Message;
use bus::{Encoding, Subject, decode, encode};
use futures::StreamExt as _;
use model::{ClaimNotice, ClaimRequest, HandOver, WaitAgain};
use serde::de::DeserializeOwned;
use service::ServiceError;
use tokio::{sync::mpsc::UnboundedSender, time::Instant};
use tracing::{debug, warn};

use crate::{Shared, reserve};

const QUEUE_GROUP: &str = "scheduler";

/// A request that has not been answered yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) request: ClaimRequest,
    pub(crate) reply: async_nats::Subject,
    came: Instant,
}

impl Pending {
    /// Whether the executor has stopped waiting for the answer.
    pub(crate) fn is_late(&self) -> bool {
        self.came.elapsed() > ClaimRequest::PATIENCE
    }
}

/// Receives requests until the service stops.
pub(crate) async fn serve(shared: Shared, pending: UnboundedSender<Pending>) -> Result<(), ServiceError> {
    for_each_message(&shared, Subject::ExecutorClaim, Delivery::ToOne, |message, request: ClaimRequest| {
        shared.view.note_request(&request);
        if let Some(reply) = message.reply {
            // Sending fails only when the service stops; the executor then asks another scheduler.
            let _ = pending.send(Pending { request, reply, came: Instant::now() });
        }
        std::future::ready(())
    })
    .await
}

/// Receives the answers of the other schedulers.
pub(crate) async fn follow_answers(shared: Shared) -> Result<(), ServiceError> {
    for_each_message(&shared, Subject::ExecutorClaimed, Delivery::ToAll, |_, notice: ClaimNotice| {
        let trim = shared.view.note_answer(&notice);
        reserve::trim(&shared, trim)
    })
    .await
}

/// Receives notices of requeued executions, from this scheduler and from others.
pub(crate) async fn follow_requeued(shared: Shared) -> Result<(), ServiceError> {
    for_each_message(&shared, Subject::ExecutionsAgain, Delivery::ToAll, |_, again: WaitAgain| {
        note_requeued(&shared, &again);
        std::future::ready(())
    })
    .await
}

/// Receives executions that an executor returns without having started them.
pub(crate) async fn serve_returned(shared: Shared) -> Result<(), ServiceError> {
    for_each_message(&shared, Subject::ExecutorHandOver, Delivery::ToOne, |_, handed: HandOver| {
        requeue_returned(&shared, handed)
    })
    .await
}

/// Which schedulers receive a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    ToOne,
    ToAll,
}

/// Passes each message on `subject` to `handle`, in order, until the service stops.
async fn for_each_message<T: DeserializeOwned, Handled: Future<Output = ()>>(
    shared: &Shared,
    subject: Subject,
    delivery: Delivery,
    handle: impl Fn(Message, T) -> Handled,
) -> Result<(), ServiceError> {
    let (client, subject) = (shared.context.bus.client(), subject.to_string());
    let what = || format!("subscribing to {subject}");
    let subscribed = match delivery {
        Delivery::ToOne => client.queue_subscribe(subject.clone(), QUEUE_GROUP.to_owned()).await,
        Delivery::ToAll => client.subscribe(subject.clone()).await,
    };
    let mut messages = subscribed.map_err(|error| ServiceError::failed(what(), error))?;
    loop {
        let message = tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            message = messages.next() => message,
        };
        let Some(message) = message else {
            return Err(ServiceError::failed(what(), "the subscription ended"));
        };
        match decode(Encoding::Json, &message.payload) {
            Ok(content) => handle(message, content).await,
            Err(error) => {
                warn!(%subject, error = telemetry::error_chain(&error), "ignoring a message that cannot be read");
            }
        }
    }
}

/// Notifies every scheduler that these executions wait again, this one before the call returns, so that no executor
/// that asks for them gets the answer that nothing waits.
pub(crate) async fn announce_requeued(shared: &Shared, again: WaitAgain) {
    if again.executions.is_empty() {
        return;
    }
    note_requeued(shared, &again);
    let payload = encode(Encoding::Json, &again);
    if let Err(error) =
        shared.context.bus.client().publish(Subject::ExecutionsAgain.to_string(), payload).await
    {
        debug!(%error, "cannot notify other schedulers of requeued executions");
    }
}

fn note_requeued(shared: &Shared, again: &WaitAgain) {
    for key in &again.executions {
        shared.view.waits_again(key);
    }
    shared.news(&again.pool);
    shared.wakes.dispatch.notify_one();
}

async fn requeue_returned(shared: &Shared, handed: HandOver) {
    let (executor, count) = (&handed.executor, handed.claimed.len());
    debug!(%executor, claimed = count, reserved = handed.reserved.len(), "an executor returns its queue");
    if !handed.claimed.is_empty() {
        match shared.actions.give_back(executor, &handed.claimed, shared.context.bus.now()).await {
            Ok(executions) => {
                announce_requeued(shared, WaitAgain { pool: handed.pool.clone(), executions }).await;
            }
            // The executor names these executions no longer, so its next heartbeat puts them in doubt.
            Err(error) => warn!(error = telemetry::error_chain(&error), "cannot requeue returned executions"),
        }
    }
    // Executors with room get notified that something waits.
    shared.news(&handed.pool);
    shared.wakes.dispatch.notify_one();
}
