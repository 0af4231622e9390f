//! Handles offers from the dispatchers: one message holds many builds and gets one answer.

use std::{collections::HashMap, sync::Arc};

use bus::Received;
use model::{BuildKey, BuildRecord, OfferReply, OfferVerdict, Offers, Sequence};
use service::{ServiceError, Step, crash_point};
use tokio::sync::oneshot;
use tracing::debug;

use crate::{shared::Shared, workspaces::Assignment};

/// Handles offers until the worker ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        ServiceError::failed("subscribing to offers", error)
    };
    let subscribed = shared.context.bus.listen::<Offers>(&shared.id).await;
    let mut offers = subscribed.map_err(|error| failed(Box::new(error)))?;
    while let Some(received) = offers.next().await {
        crash_point(Step::OfferReceived);
        tokio::spawn(answer(shared.clone(), received));
    }
    Err(failed("the subscription ended".into()))
}

async fn answer(shared: Arc<Shared>, received: Received<Offers>) {
    let (offers, answering) = received.split();
    let verdicts = assign_all(&shared, offers).await;
    // If the answer is lost, the offers expire at their deadlines.
    answering.send(&OfferReply { verdicts }).await;
}

/// Passes every offer to its workspace and collects the verdicts.
async fn assign_all(shared: &Arc<Shared>, offers: Offers) -> Vec<OfferVerdict> {
    let key = |offer: &model::Offer| BuildKey { group: offer.group.clone(), id: offer.id };
    let keys: Vec<BuildKey> = offers.offers.iter().map(key).collect();
    let mut records = read(shared, &keys).await;
    let mut waiting = Vec::with_capacity(keys.len());
    for (offer, key) in offers.offers.into_iter().zip(keys) {
        let (verdict, answer) = oneshot::channel();
        let record = records.remove(&key);
        shared.workspaces.assign(Assignment { offer, key, record, verdict });
        waiting.push(answer);
    }
    let mut verdicts = Vec::with_capacity(waiting.len());
    for answer in waiting {
        verdicts.push(answer.await.unwrap_or(OfferVerdict::Failed));
    }
    verdicts
}

/// Reads all records in one round trip; a missing or outdated one is read again when it is claimed.
async fn read(shared: &Shared, keys: &[BuildKey]) -> HashMap<BuildKey, (Sequence, BuildRecord)> {
    match shared.context.bus.latest_many(keys).await {
        Ok(found) => found.into_iter().map(|(at, record)| (record.build.key(), (at, record))).collect(),
        Err(error) => {
            debug!(error = telemetry::error_chain(&error), "cannot read all offered builds at once");
            HashMap::new()
        }
    }
}
