//! Handles offers from the dispatchers: one message holds many builds and gets one answer.

use std::{collections::HashMap, sync::Arc};

use bus::{FromJson as _, Received};
use model::{BuildKey, BuildRecord, Offer, OfferReply, OfferVerdict, Offers, QueueSpan, Sequence};
use service::{ServiceError, Step, Subscription, crash_point};
use telemetry::spans;
use tokio::sync::oneshot;
use trace::BuildTrace;
use tracing::debug;

use crate::{shared::Shared, workspaces::Assignment};

/// Handles offers until the worker ends.
pub(crate) async fn serve(shared: Arc<Shared>, mut offers: Subscription<Offers>) -> Result<(), ServiceError> {
    loop {
        let received = offers.next().await?;
        crash_point(Step::OfferReceived);
        tokio::spawn(answer(shared.clone(), received));
    }
}

async fn answer(shared: Arc<Shared>, received: Received<Offers>) {
    let (offers, answering) = received.split();
    let reply = assign_all(&shared, offers).await;
    // If the answer is lost, the offers expire at their deadlines.
    answering.send(&reply).await;
}

/// Passes every offer to its workspace and collects the verdicts.
async fn assign_all(shared: &Arc<Shared>, mut offers: Offers) -> OfferReply {
    let key = |offer: &Offer| BuildKey { group: offer.group.clone(), id: offer.id };
    let keys: Vec<BuildKey> = offers.offers.iter().map(key).collect();
    let mut records = HashMap::with_capacity(keys.len());
    let mut missing = Vec::new();
    for (offer, key) in offers.offers.iter_mut().zip(&keys) {
        match carried(offer, key) {
            Some(record) => drop(records.insert(key.clone(), record)),
            None => missing.push(key.clone()),
        }
    }
    records.extend(read(shared, &missing).await);
    let traced = if spans::trace_enabled() { keys.as_slice() } else { &[] };
    let queued = traced.iter().map(|key| records.get(key).map(|(_, record)| queued(record))).collect();
    let mut waiting = Vec::with_capacity(keys.len());
    // The sensor for it may have been read some time ago.
    let is_closed = shared.machine.is_wanted();
    if is_closed {
        shared.workspaces.read_sensors();
    }
    for (offer, key) in offers.offers.into_iter().zip(keys) {
        let (verdict, answer) = oneshot::channel();
        let record = records.remove(&key);
        if is_closed {
            // The worker shuts down if the offer's handler has gone.
            let _ = verdict.send(OfferVerdict::Busy);
        } else {
            shared.workspaces.assign(Assignment { offer, key, record, verdict });
        }
        waiting.push(answer);
    }
    let mut verdicts = Vec::with_capacity(waiting.len());
    for answer in waiting {
        // A workspace whose loop has ended drops the offer without a verdict.
        verdicts.push(answer.await.unwrap_or(OfferVerdict::Failed));
    }
    OfferReply { verdicts, queued }
}

/// The wait of a build that is offered now.
fn queued(record: &BuildRecord) -> QueueSpan {
    let span = BuildTrace::of(&record.build).queue(record.attempt);
    QueueSpan { since_ms: record.queue.enqueued_at_ms, traceparent: span.to_string() }
}

/// Takes the record from an offer. If the build has moved on, its claim fails: another worker has its lease, or writing
/// INVOCATION_STARTED is a conflict.
fn carried(offer: &mut Offer, key: &BuildKey) -> Option<(Sequence, BuildRecord)> {
    let stored = offer.record.take()?;
    let record = BuildRecord::from_json(stored.get().as_bytes()).inspect_err(|error| {
        debug!(%key, error = telemetry::error_chain(error), "cannot read the record in an offer");
    });
    let record: BuildRecord = record.ok()?;
    (record.build.key() == *key).then_some((offer.sequence, record))
}

/// Reads all records in one round trip; a missing or outdated one is read again when it is claimed.
async fn read(shared: &Shared, keys: &[BuildKey]) -> HashMap<BuildKey, (Sequence, BuildRecord)> {
    match shared.context.bus.records().latest_many(keys).await {
        Ok(found) => found.into_iter().map(|(at, record)| (record.build.key(), (at, record))).collect(),
        Err(error) => {
            debug!(error = telemetry::error_chain(&error), "cannot read all offered builds at once");
            HashMap::new()
        }
    }
}
