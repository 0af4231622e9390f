//! Offers from the schedulers: many executions to a message, one answer at once.

use std::sync::Arc;

use async_nats::{Message, Subscriber};
use bus::{Encoding, Subject, decode, encode};
use futures::StreamExt as _;
use model::{ExecutionOfferReply, ExecutionOffers, ExecutionVerdict, Millis};
use service::{ServiceError, Step, crash_point};
use tracing::{debug, warn};

use crate::{Shared, run};

/// Listens to offers; before anyone can know that we are here.
pub(crate) async fn subscribe(shared: &Shared) -> Result<Subscriber, ServiceError> {
    let subject = Subject::ExecutorOffer(shared.id.clone()).to_string();
    let subscribed = shared.context.bus.client().subscribe(subject).await;
    subscribed.map_err(|error| ServiceError::failed("subscribing to offers", error))
}

/// Takes offers until the session ends.
pub(crate) async fn serve(shared: Arc<Shared>, mut offers: Subscriber) -> Result<(), ServiceError> {
    while let Some(message) = offers.next().await {
        crash_point(Step::ActionOfferReceived);
        answer(&shared, message).await;
    }
    Err(ServiceError::failed("subscribing to offers", "the subscription ended"))
}

async fn answer(shared: &Arc<Shared>, message: Message) {
    let offers: ExecutionOffers = match decode(Encoding::Json, &message.payload) {
        Ok(offers) => offers,
        Err(error) => {
            warn!(error = telemetry::error_chain(&error), "an offer cannot be read");
            return;
        }
    };
    let now = Millis::now();
    let mut verdicts = Vec::with_capacity(offers.offers.len());
    for offer in offers.offers {
        let key = offer.record.execution.key();
        if offer.deadline_ms < now {
            // It may have been offered elsewhere since.
            debug!(%key, "an offer came too late");
            verdicts.push(ExecutionVerdict::Busy);
            continue;
        }
        let (verdict, hand) = shared.hands.take(&key);
        if let Some(hand) = hand {
            run::begin(shared, offer, hand);
        }
        verdicts.push(verdict);
    }
    crash_point(Step::ActionTaken);
    if let Some(reply) = message.reply {
        let payload = encode(Encoding::Json, &ExecutionOfferReply { verdicts });
        if let Err(error) = shared.context.bus.client().publish(reply, payload).await {
            debug!(%error, "an answer to an offer was not sent; its deadline settles it");
        }
    }
}
