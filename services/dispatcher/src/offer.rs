//! Offers picked builds to their workers, many in one message, and settles the refused ones.

use std::time::{Duration, UNIX_EPOCH};

use bus::{NoAnswer, Stored, millis};
use index::{Index, Pick, Settlement, Verdict};
use invariant::{Present as _, impossible};
use model::{BuildKey, BuildRecord, Heartbeat, Millis, Offer, OfferReply, OfferVerdict, Offers, Sequence};
use service::{Context, Step, crash_point, request_heartbeats};
use telemetry::{
    metrics::{Counter, Label, count},
    spans,
};
use trace::Change;
use tracing::{debug, warn};

use crate::{Wakes, error::PassError};

/// A committed pick, and its record if it was read to choose the workspace.
#[derive(Clone)]
pub(crate) struct PickedBuild {
    pub(crate) pick: Pick,
    /// The record at the position of the pick.
    pub(crate) record: Option<Stored>,
    /// What it waited for; empty if this process does not trace.
    pub(crate) waits: Vec<Change>,
}

impl PickedBuild {
    fn record_bytes(&self) -> usize {
        self.record.as_ref().map_or(0, |record| record.payload.len())
    }
}

/// Builds committed to one worker.
pub(crate) struct Offered {
    pub(crate) builds: Vec<PickedBuild>,
    pub(crate) deadline: Millis,
    pub(crate) dispatched_at_us: u64,
    pub(crate) dispatched_at_sequence: Sequence,
}

/// Delay before a build whose claim failed is offered again, for example because its last owner's lease is still held.
const RETRY: Duration = Duration::from_millis(100);
/// Maximum delay between the start of a claim and its write.
pub(crate) const CLAIM_MARGIN: Duration = Duration::from_millis(500);
/// Maximum number of expired offers checked in one pass.
const RUN_OUT_MAX: usize = 256;
/// The records in one message may fill one part in this many of what nats-server accepts. Workers read the others.
const RECORD_SHARE: usize = 2;

/// Sends the offers and settles the refused ones. Without an answer, the deadline settles them.
pub(crate) async fn offer(context: Context, index: Index, wakes: Wakes, mut offered: Offered) {
    let Some(worker) = offered.builds.first().map(|build| build.pick.workspace.worker.clone()) else {
        impossible!("an offer without builds");
        return;
    };
    let offers = message(&mut offered, context.bus.max_payload() / RECORD_SHARE);
    let answer = context.bus.answer_to(&worker, &offers, None).await;
    drop(offers);
    let answer = if matches!(answer, Err(NoAnswer::TooLarge { .. })) {
        // Without records, which workers then read.
        let offers = message(&mut offered, 0);
        context.bus.answer_to(&worker, &offers, None).await
    } else {
        answer
    };
    let settlements = match answer {
        Ok(reply) => {
            export_waits(&offered, &reply);
            refusals(&offered, &reply, context.bus.now())
        }
        Err(NoAnswer::NoListener { .. }) => {
            debug!(%worker, "the worker is gone");
            offered.builds.iter().map(|build| settlement(&build.pick, Verdict::Gone)).collect()
        }
        Err(error @ NoAnswer::TooLarge { .. }) => {
            warn!(%worker, error = telemetry::error_chain(&error), "cannot offer builds");
            let retry = Verdict::Failed(before_margin(context.bus.now().after(RETRY)));
            offered.builds.iter().map(|build| settlement(&build.pick, retry)).collect()
        }
        Err(error @ NoAnswer::Unreadable { .. }) => {
            warn!(%worker, error = telemetry::error_chain(&error), "cannot read the worker's answer");
            return;
        }
        Err(error @ NoAnswer::Unknown { .. }) => {
            let error = telemetry::error_chain(&error);
            debug!(%worker, error, "no answer to an offer; it expires at its deadline");
            return;
        }
    };
    crash_point(Step::Offered);
    if settlements.is_empty() {
        return;
    }
    if let Err(error) = index.settle(&settlements).await {
        warn!(error = telemetry::error_chain(&error), "cannot settle refused offers; they will expire");
    }
    wakes.dispatch.notify_one();
}

/// Handles expired offers. A build that was started nevertheless, and whose event has not arrived yet, keeps counting;
/// the others are requeued. Workers that let an offer expire are asked for a heartbeat: a live worker that never
/// received the offer, because its dispatcher died, is offered builds again at once.
pub(crate) async fn take_back(context: &Context, index: &Index) -> Result<(), PassError> {
    let now = context.bus.now();
    let at = before_margin(now);
    let run_out = index.run_out(at, RUN_OUT_MAX).await?;
    if run_out.is_empty() {
        return Ok(());
    }
    let keys: Vec<BuildKey> = run_out.iter().map(|(key, _)| key.clone()).collect();
    // From the leader: a stale replica might not have a start.
    let reads = keys.iter().map(|key| context.bus.records().latest(key));
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
        debug!(silent, "workers let offers expire");
        request_heartbeats::<Heartbeat>(&context.bus).await;
    }
    Ok(())
}

fn before_margin(at: Millis) -> Millis {
    Millis(at.0.saturating_sub(millis(CLAIM_MARGIN)))
}

/// The offers, with the records that fit `room` bytes. No record is needed afterwards.
fn message(offered: &mut Offered, mut room: usize) -> Offers {
    let Offered { builds, deadline, dispatched_at_us, dispatched_at_sequence } = offered;
    let offer = |build: &mut PickedBuild| {
        let bytes = build.record_bytes();
        let record = build.record.take().filter(|_| bytes <= room);
        room -= record.as_ref().map_or(0, |_| bytes);
        let pick = &build.pick;
        Offer {
            group: pick.key.group.clone(),
            id: pick.key.id,
            sequence: pick.sequence,
            workspace: pick.workspace.slot,
            deadline_ms: *deadline,
            dispatched_at_us: *dispatched_at_us,
            dispatched_at_sequence: *dispatched_at_sequence,
            workspace_kind: pick.kind,
            record: record.and_then(|record| {
                record.read().map(Some).present("the JSON of a record that was parsed before")
            }),
        }
    };
    Offers { offers: builds.iter_mut().map(offer).collect() }
}

/// Exports what the builds that started waited for.
fn export_waits(offered: &Offered, reply: &OfferReply) {
    let picked = UNIX_EPOCH + Duration::from_micros(offered.dispatched_at_us);
    for ((build, verdict), queued) in offered.builds.iter().zip(&reply.verdicts).zip(&reply.queued) {
        let (OfferVerdict::Started, Some(queued)) = (verdict, queued) else { continue };
        let Ok(queue) = queued.traceparent.parse() else { continue };
        for span in trace::waits(queue, queued.since_ms.into(), picked, &build.waits) {
            spans::export(span);
        }
    }
}

fn settlement(pick: &Pick, verdict: Verdict) -> Settlement {
    Settlement { key: pick.key.clone(), sequence: pick.sequence, workspace: pick.workspace.clone(), verdict }
}

fn refusals(offered: &Offered, reply: &OfferReply, now: Millis) -> Vec<Settlement> {
    // The worker has refused the build, so the margin added to the deadlines of other offers is not needed.
    let retry = before_margin(now.after(RETRY));
    let settle = |(build, verdict): (&PickedBuild, &OfferVerdict)| {
        let (label, verdict) = match verdict {
            OfferVerdict::Started => ("started", None),
            OfferVerdict::Busy => ("busy", Some(Verdict::Busy)),
            OfferVerdict::Stale => ("stale", Some(Verdict::Stale)),
            OfferVerdict::Failed => ("failed", Some(Verdict::Failed(retry))),
        };
        count(Counter::Offers, &[(Label::Verdict, label)], 1);
        if verdict.is_some() {
            debug!(key = %build.pick.key, workspace = %build.pick.workspace, label, "offer refused");
        }
        verdict.map(|verdict| settlement(&build.pick, verdict))
    };
    offered.builds.iter().zip(&reply.verdicts).filter_map(settle).collect()
}

#[cfg(test)]
mod tests {
    use model::{BuildId, Workspace};

    use super::*;

    fn build(record_bytes: Option<usize>) -> PickedBuild {
        let record = record_bytes.map(|bytes| Stored {
            subject: "subject".to_owned(),
            sequence: Sequence(1),
            at: Millis(1),
            headers: None,
            payload: format!("\"{}\"", "x".repeat(bytes - 2)).into(),
        });
        let worker = "worker-1".parse().unwrap();
        let pick = Pick {
            key: BuildKey { group: "g".parse().unwrap(), id: BuildId::generate() },
            version: 1,
            sequence: Sequence(1),
            workspace: Workspace { worker, slot: 0 },
            kind: None,
            counts_as: None,
        };
        PickedBuild { pick, record, waits: Vec::new() }
    }

    #[test]
    fn a_message_carries_the_records_that_fit() {
        let sizes = [None, Some(300), Some(300), Some(100), Some(101)];
        let mut offered = Offered {
            builds: sizes.into_iter().map(build).collect(),
            deadline: Millis(1),
            dispatched_at_us: 1,
            dispatched_at_sequence: Sequence(1),
        };
        let carried: Vec<usize> = message(&mut offered, 500)
            .offers
            .iter()
            .map(|offer| offer.record.as_ref().map_or(0, |record| record.get().len()))
            .collect();
        assert_eq!(carried, [0, 300, 0, 100, 0]);
        assert!(offered.builds.iter().all(|build| build.record.is_none()));
    }
}
