//! Requests of executors for work: each goes to one scheduler, and waits there for the next pass.

use bus::{Plain, Received};
use model::{ClaimNotice, HandOver, WaitAgain};
use service::{ServiceError, Subscription};
use tokio::{sync::mpsc::UnboundedSender, time::Instant};
use tracing::{debug, warn};

use crate::{
    Shared,
    claim_messages::{Asked, Pending},
    reserve,
};

const QUEUE_GROUP: &str = "scheduler";

/// Receives requests until the service stops.
pub(crate) async fn serve(shared: Shared, pending: UnboundedSender<Pending>) -> Result<(), ServiceError> {
    for_each_message(&shared, Delivery::ToOne, |asked: Received<Asked>| {
        let wants_answer = asked.wants_answer();
        let (Asked(request), answering) = asked.split();
        shared.view.note_request(&request);
        if wants_answer {
            // Sending fails only when the service stops; the executor then asks another scheduler.
            let _ = pending.send(Pending { request, answering, came: Instant::now() });
        }
        std::future::ready(())
    })
    .await
}

/// Receives the answers of the other schedulers.
pub(crate) async fn follow_answers(shared: Shared) -> Result<(), ServiceError> {
    for_each_message(&shared, Delivery::ToAll, |notice: Received<ClaimNotice>| {
        let trim = shared.view.note_answer(&notice.content);
        reserve::trim(&shared, trim)
    })
    .await
}

/// Receives notices of requeued executions, from this scheduler and from others.
pub(crate) async fn follow_requeued(shared: Shared) -> Result<(), ServiceError> {
    for_each_message(&shared, Delivery::ToAll, |again: Received<WaitAgain>| {
        note_requeued(&shared, &again.content);
        std::future::ready(())
    })
    .await
}

/// Receives executions that an executor returns without having started them.
pub(crate) async fn serve_returned(shared: Shared) -> Result<(), ServiceError> {
    for_each_message(&shared, Delivery::ToOne, |handed: Received<HandOver>| {
        requeue_returned(&shared, handed.content)
    })
    .await
}

/// Which schedulers receive a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    ToOne,
    ToAll,
}

/// Passes each message of a kind to `handle`, in order, until the service stops.
async fn for_each_message<M: Plain<To = ()>, Handled: Future<Output = ()>>(
    shared: &Shared,
    delivery: Delivery,
    handle: impl Fn(Received<M>) -> Handled,
) -> Result<(), ServiceError> {
    let bus = &shared.context.bus;
    let mut messages = match delivery {
        Delivery::ToOne => Subscription::<M>::in_group(bus, &(), QUEUE_GROUP).await?,
        Delivery::ToAll => Subscription::<M>::new(bus, &()).await?,
    };
    loop {
        let message = tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            message = messages.next() => message?,
        };
        handle(message).await;
    }
}

/// Notifies every scheduler that these executions wait again, this one before the call returns, so that no executor
/// that asks for them gets the answer that nothing waits.
pub(crate) async fn announce_requeued(shared: &Shared, again: WaitAgain) {
    if again.executions.is_empty() {
        return;
    }
    note_requeued(shared, &again);
    if let Err(error) = shared.context.bus.send(&(), &again).await {
        let error = telemetry::error_chain(&error);
        debug!(error, "cannot notify other schedulers of requeued executions");
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
