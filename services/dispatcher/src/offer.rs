//! Offering picked builds to their worker, many to a message, and settling what it does not take.

use std::time::Duration;

use async_nats::client::RequestErrorKind;
use bus::{Encoding, Subject, decode, encode};
use bytes::Bytes;
use index::{Index, IndexError, Pick, Settlement, Verdict};
use model::{Millis, Offer, OfferReply, OfferVerdict, Offers, Sequence};
use service::{Context, Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tracing::{debug, warn};

use crate::Wakes;

/// Builds committed to one worker.
pub(crate) struct Offered {
    pub(crate) picks: Vec<Pick>,
    pub(crate) deadline: Millis,
    pub(crate) dispatched_at_us: u64,
    pub(crate) dispatched_at_sequence: Sequence,
}

/// When a build whose claim failed (its last owner's lease still stands, say) is offered again.
const RETRY: Duration = Duration::from_millis(100);

/// Offers `offered` and settles the refusals. Without an answer the deadline does.
pub(crate) async fn offer(context: Context, index: Index, wakes: Wakes, offered: Offered) {
    let Some(worker) = offered.picks.first().map(|pick| pick.workspace.worker.clone()) else { return };
    let subject = Subject::Offer(worker.clone()).to_string();
    let payload = encode(Encoding::Json, &message(&offered));
    let settlements = match context.bus.client().request(subject, payload).await {
        Ok(reply) => match decode::<OfferReply>(Encoding::Json, &reply.payload) {
            Ok(reply) => refusals(&offered, &reply),
            Err(error) => {
                warn!(%worker, error = telemetry::error_chain(&error), "the worker's answer cannot be read");
                return;
            }
        },
        Err(error) if error.kind() == RequestErrorKind::NoResponders => {
            debug!(%worker, "the worker is gone");
            offered.picks.iter().map(|pick| settlement(pick, Verdict::Gone)).collect()
        }
        Err(error) => {
            debug!(%worker, %error, "no answer to an offer; its deadline settles it");
            return;
        }
    };
    crash_point(Step::Offered);
    if settlements.is_empty() {
        return;
    }
    if let Err(error) = settle(&context, &index, &settlements).await {
        warn!(error = telemetry::error_chain(&error), "refused offers were not settled; their deadline does");
    }
    wakes.dispatch.notify_one();
}

/// Settles `settlements` and the offers that ran out. Workers that let one run out are asked whether they live: one
/// that does and was never asked, because its dispatcher died, is offered builds again at once.
pub(crate) async fn settle(
    context: &Context,
    index: &Index,
    settlements: &[Settlement],
) -> Result<(), IndexError> {
    let (_, silent) = index.settle(Millis::now(), settlements).await?;
    if silent > 0 {
        debug!(silent, "workers let offers run out");
        if let Err(error) = context.bus.client().publish(Subject::Announce.to_string(), Bytes::new()).await {
            debug!(%error, "workers were not asked to announce themselves; their next heartbeat does");
        }
    }
    Ok(())
}

fn message(offered: &Offered) -> Offers {
    let one = |pick: &Pick| Offer {
        group: pick.key.group.clone(),
        id: pick.key.id,
        sequence: pick.sequence,
        workspace: pick.workspace.slot,
        deadline_ms: offered.deadline,
        dispatched_at_us: offered.dispatched_at_us,
        dispatched_at_sequence: offered.dispatched_at_sequence,
    };
    Offers { offers: offered.picks.iter().map(one).collect() }
}

fn settlement(pick: &Pick, verdict: Verdict) -> Settlement {
    Settlement { key: pick.key.clone(), sequence: pick.sequence, workspace: pick.workspace.clone(), verdict }
}

fn refusals(offered: &Offered, reply: &OfferReply) -> Vec<Settlement> {
    let retry = Millis::now().after(RETRY);
    let settle = |(pick, verdict): (&Pick, &OfferVerdict)| {
        let (label, verdict) = match verdict {
            OfferVerdict::Started => ("started", None),
            OfferVerdict::Busy => ("busy", Some(Verdict::Busy)),
            OfferVerdict::Stale => ("stale", Some(Verdict::Stale)),
            OfferVerdict::Failed => ("failed", Some(Verdict::Failed(retry))),
        };
        count(Counter::Offers, &[(Label::Verdict, label)], 1);
        verdict.map(|verdict| settlement(pick, verdict))
    };
    offered.picks.iter().zip(&reply.verdicts).filter_map(settle).collect()
}
