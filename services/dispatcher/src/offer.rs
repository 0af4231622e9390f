//! Offering picked builds to their worker, many to a message, and settling what it does not take.

use std::time::Duration;

use async_nats::client::RequestErrorKind;
use bus::{Encoding, Subject, decode, encode};
use bytes::Bytes;
use index::{Index, Pick, Settlement, Verdict};
use model::{BuildKey, BuildRecord, Millis, Offer, OfferReply, OfferVerdict, Offers, Sequence};
use service::{Context, Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tracing::{debug, warn};

use crate::{Wakes, dispatch::PassError};

/// Builds committed to one worker.
pub(crate) struct Offered {
    pub(crate) picks: Vec<Pick>,
    pub(crate) deadline: Millis,
    pub(crate) dispatched_at_us: u64,
    pub(crate) dispatched_at_sequence: Sequence,
}

/// When a build whose claim failed (its last owner's lease still stands, say) is offered again.
const RETRY: Duration = Duration::from_millis(100);
/// A claim that began in time may be written so much later.
pub(crate) const CLAIM_MARGIN: Duration = Duration::from_millis(500);
/// Offers that ran out, looked at in one go.
const RUN_OUT_MAX: usize = 256;

/// Offers `offered` and settles the refusals. Without an answer the deadline does.
pub(crate) async fn offer(context: Context, index: Index, wakes: Wakes, offered: Offered) {
    let Some(worker) = offered.picks.first().map(|pick| pick.workspace.worker.clone()) else { return };
    let subject = Subject::Offer(worker.clone()).to_string();
    let payload = encode(Encoding::Json, &message(&offered));
    let settlements = match context.bus.client().request(subject, payload).await {
        Ok(reply) => match decode::<OfferReply>(Encoding::Json, &reply.payload) {
            Ok(reply) => refusals(&offered, &reply, context.bus.now()),
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
    if let Err(error) = index.settle(&settlements).await {
        warn!(error = telemetry::error_chain(&error), "refused offers were not settled; their deadline does");
    }
    wakes.dispatch.notify_one();
}

/// Looks at offers that ran out. A build that was started nevertheless, and whose event has not come yet, goes on counting;
/// the others wait again. Workers that let one run out are asked whether they live: one that does and was never asked,
/// because its dispatcher died, is offered builds again at once.
pub(crate) async fn take_back(context: &Context, index: &Index) -> Result<(), PassError> {
    let now = context.bus.now();
    let at = before_margin(now);
    let run_out = index.run_out(at, RUN_OUT_MAX).await?;
    if run_out.is_empty() {
        return Ok(());
    }
    let keys: Vec<BuildKey> = run_out.iter().map(|(key, _)| key.clone()).collect();
    // From the leader: a replica that is behind would not know of a start.
    let reads = keys.iter().map(|key| context.bus.latest(key));
    let records = futures::future::try_join_all(reads).await?;
    let moved_on = |offered: &Sequence, last: &Option<(Sequence, BuildRecord)>| {
        last.as_ref().is_some_and(|(position, _)| position > offered)
    };
    let (mut started, mut waiting) = (Vec::new(), Vec::new());
    for ((key, offered), last) in run_out.into_iter().zip(&records) {
        if moved_on(&offered, last) { started.push(key) } else { waiting.push(key) }
    }
    let (_, silent) = index.take_back(at, now.after(RETRY), &started, &waiting).await?;
    if silent > 0 {
        debug!(silent, "workers let offers run out");
        if let Err(error) = context.bus.client().publish(Subject::Announce.to_string(), Bytes::new()).await {
            debug!(%error, "workers were not asked to announce themselves; their next heartbeat does");
        }
    }
    Ok(())
}

fn before_margin(at: Millis) -> Millis {
    Millis(at.0.saturating_sub(u64::try_from(CLAIM_MARGIN.as_millis()).unwrap_or(u64::MAX)))
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
        workspace_kind: pick.kind,
    };
    Offers { offers: offered.picks.iter().map(one).collect() }
}

fn settlement(pick: &Pick, verdict: Verdict) -> Settlement {
    Settlement { key: pick.key.clone(), sequence: pick.sequence, workspace: pick.workspace.clone(), verdict }
}

fn refusals(offered: &Offered, reply: &OfferReply, now: Millis) -> Vec<Settlement> {
    // It is known that nobody has it: no need for the margin that is added to the deadlines of others.
    let retry = before_margin(now.after(RETRY));
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
