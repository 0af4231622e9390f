//! Messages of executors and of other schedulers: room, grants, and executions that wait again.

use bus::{Plain, Received};
use model::{ExecutorId, GrantNotices, Grants, HandOver, RoomReport, WaitAgain};
use service::{ServiceError, Subscription};
use tracing::{debug, warn};

use crate::Shared;

const QUEUE_GROUP: &str = "scheduler";

/// Receives all reports of room, and grants what waits.
pub(crate) async fn follow_rooms(shared: Shared) -> Result<(), ServiceError> {
    for_each_message(&shared, Delivery::ToAll, |report: Received<RoomReport>| {
        if shared.view.report(&report.content) {
            shared.wake();
        }
        std::future::ready(())
    })
    .await
}

/// Receives the grants of the other schedulers.
pub(crate) async fn follow_grants(shared: Shared) -> Result<(), ServiceError> {
    for_each_message(&shared, Delivery::ToAll, |notices: Received<GrantNotices>| {
        // Those of this scheduler are known here.
        let news = notices.content.grants.iter().filter(|notice| shared.view.granted(notice)).count();
        if news > 0 {
            shared.note_peers();
        }
        std::future::ready(())
    })
    .await
}

/// Receives notices of requeued executions, from this scheduler and from others.
pub(crate) async fn follow_requeued(shared: Shared) -> Result<(), ServiceError> {
    for_each_message(&shared, Delivery::ToAll, |again: Received<WaitAgain>| {
        shared.queues.news_of(&again.content.requirements);
        shared.wakes.check.notify_one();
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

/// Grants executions that wait again, and notifies the other schedulers of them.
pub(crate) async fn announce_requeued(shared: &Shared, again: WaitAgain) {
    if again.requirements.is_empty() {
        return;
    }
    shared.queues.news_of(&again.requirements);
    shared.wakes.dispatch.notify_one();
    if let Err(error) = shared.context.bus.send(&(), &again).await {
        let error = telemetry::error_chain(&error);
        debug!(error, "cannot notify other schedulers of requeued executions");
    }
}

/// Asks an executor for a heartbeat, with its room and what it holds after the grants up to `number`.
pub(crate) async fn ask_room(shared: &Shared, executor: &ExecutorId, number: u64) {
    let ask = Grants { number, claimed: Vec::new() };
    shared.context.bus.send_or_log(executor, &ask).await;
}

async fn requeue_returned(shared: &Shared, handed: HandOver) {
    let (executor, count) = (&handed.executor, handed.claimed.len());
    debug!(%executor, claimed = count, "an executor returns executions");
    match shared.actions.give_back(executor, &handed.claimed, shared.context.bus.now()).await {
        Ok(requirements) => announce_requeued(shared, WaitAgain { requirements }).await,
        // The executor names these executions no longer, so its next heartbeat puts them in doubt.
        Err(error) => warn!(error = telemetry::error_chain(&error), "cannot requeue returned executions"),
    }
}
