//! Executors that ask for work: each request goes to one scheduler, and waits there for the next pass.

use bus::{Encoding, Subject, decode, encode};
use futures::StreamExt as _;
use model::{ClaimNotice, ClaimRequest, HandOver, Millis, WaitAgain};
use service::ServiceError;
use tokio::sync::mpsc::UnboundedSender;
use tracing::{debug, warn};

use crate::{Shared, reserve};

const QUEUE_GROUP: &str = "scheduler";

/// A request that is not answered yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) request: ClaimRequest,
    pub(crate) reply: async_nats::Subject,
}

/// Takes requests until the service stops.
pub(crate) async fn serve(shared: Shared, pending: UnboundedSender<Pending>) -> Result<(), ServiceError> {
    let failed = |error| ServiceError::failed("subscribing to executors that ask for work", error);
    let subject = Subject::ExecutorClaim.to_string();
    let client = shared.context.bus.client();
    let subscribed = client.queue_subscribe(subject, QUEUE_GROUP.to_owned()).await;
    let mut requests = subscribed.map_err(failed)?;
    loop {
        let message = tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            message = requests.next() => message,
        };
        let Some(message) = message else {
            return Err(ServiceError::failed("subscribing to executors that ask for work", "it ended"));
        };
        let request: ClaimRequest = match decode(Encoding::Json, &message.payload) {
            Ok(request) => request,
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "what an executor asks for cannot be read");
                continue;
            }
        };
        shared.view.asks(&request);
        if let Some(reply) = message.reply {
            // Fails when the service stops: the executor asks another.
            let _ = pending.send(Pending { request, reply });
        }
    }
}

/// Hears what other schedulers answered.
pub(crate) async fn hear(shared: Shared) -> Result<(), ServiceError> {
    let failed = |error| ServiceError::failed("subscribing to what other schedulers answer", error);
    let subscribed = shared.context.bus.client().subscribe(Subject::ExecutorClaimed.to_string()).await;
    let mut notices = subscribed.map_err(failed)?;
    loop {
        let message = tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            message = notices.next() => message,
        };
        let Some(message) = message else {
            return Err(ServiceError::failed("subscribing to what other schedulers answer", "it ended"));
        };
        if let Ok(notice) = decode::<ClaimNotice>(Encoding::Json, &message.payload) {
            let trim = shared.view.answered(&notice);
            reserve::trim(&shared, trim).await;
        }
    }
}

/// Hears what waits again, here or by the word of another scheduler.
pub(crate) async fn hear_again(shared: Shared) -> Result<(), ServiceError> {
    let failed = |error| ServiceError::failed("subscribing to what waits again", error);
    let subscribed = shared.context.bus.client().subscribe(Subject::ExecutionsAgain.to_string()).await;
    let mut messages = subscribed.map_err(failed)?;
    loop {
        let message = tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            message = messages.next() => message,
        };
        let Some(message) = message else {
            return Err(ServiceError::failed("subscribing to what waits again", "it ended"));
        };
        if let Ok(again) = decode::<WaitAgain>(Encoding::Json, &message.payload) {
            note_again(&shared, &again);
        }
    }
}

/// Tells every scheduler, this one at once, that these wait again: whoever asks for them is not told that nothing waits.
pub(crate) async fn tell_again(shared: &Shared, again: WaitAgain) {
    if again.executions.is_empty() {
        return;
    }
    note_again(shared, &again);
    let payload = encode(Encoding::Json, &again);
    if let Err(error) =
        shared.context.bus.client().publish(Subject::ExecutionsAgain.to_string(), payload).await
    {
        debug!(%error, "other schedulers were not told what waits again");
    }
}

fn note_again(shared: &Shared, again: &WaitAgain) {
    for key in &again.executions {
        shared.view.waits_again(key);
    }
    shared.news(&again.pool);
    shared.wakes.dispatch.notify_one();
}

/// Takes over what executors that go away did not start.
pub(crate) async fn take_over(shared: Shared) -> Result<(), ServiceError> {
    let failed = |error| ServiceError::failed("subscribing to executors that go away", error);
    let subject = Subject::ExecutorHandOver.to_string();
    let subscribed = shared.context.bus.client().queue_subscribe(subject, QUEUE_GROUP.to_owned()).await;
    let mut handed = subscribed.map_err(failed)?;
    loop {
        let message = tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            message = handed.next() => message,
        };
        let Some(message) = message else {
            return Err(ServiceError::failed("subscribing to executors that go away", "it ended"));
        };
        match decode::<HandOver>(Encoding::Json, &message.payload) {
            Ok(handed) => hand_over(&shared, handed).await,
            Err(error) => warn!(error = telemetry::error_chain(&error), "a hand-over cannot be read"),
        }
    }
}

async fn hand_over(shared: &Shared, handed: HandOver) {
    let (executor, count) = (&handed.executor, handed.claimed.len());
    debug!(%executor, claimed = count, reserved = handed.reserved.len(), "an executor hands its queue over");
    if !handed.claimed.is_empty() {
        match shared.actions.give_back(executor, &handed.claimed, Millis::now()).await {
            Ok(executions) => tell_again(shared, WaitAgain { pool: handed.pool.clone(), executions }).await,
            // It names them no more: its next heartbeat puts them in doubt.
            Err(error) => warn!(error = telemetry::error_chain(&error), "a hand-over was not taken"),
        }
    }
    // Whoever has room is told that something waits.
    shared.news(&handed.pool);
    shared.wakes.dispatch.notify_one();
}
