//! Becoming the owner of a build: the lease, then INVOCATION_STARTED, then a look at the clock.

use std::time::{Duration, SystemTime};

use bus::{Acquired, Lease, LeaseHolder, Renewed, Written};
use model::{BuildKey, BuildRecord, Group, Invocation, Offer, OfferVerdict, Phase, Sequence, WorkspaceKeys};
use service::{Step, crash_point};
use shim::Deadline;
use telemetry::metrics::{Counter, Histogram, Label, count, observe};
use tracing::{debug, warn};

use crate::{Shared, lease_keeper::deadline_after, stop::Cause, warm};

/// A build that is ours.
pub(crate) struct Claimed {
    pub(crate) key: BuildKey,
    /// With its invocation.
    pub(crate) record: BuildRecord,
    /// Position of its INVOCATION_STARTED.
    pub(crate) started_at: Sequence,
    pub(crate) lease: Lease,
    /// When its processes must be dead unless the lease is renewed.
    pub(crate) deadline: Deadline,
    /// The lease passed away in between: nothing may run.
    pub(crate) lost: Option<Cause>,
}

const PATIENCE: Duration = Duration::from_secs(2);

/// Claims the offered build, or says why not. `left` is by what the next build finds what is left in the workspace, and
/// the group that it is of.
pub(crate) async fn claim(
    shared: &Shared,
    offer: &Offer,
    key: &BuildKey,
    record: Option<(Sequence, BuildRecord)>,
    left: Option<(&Group, &WorkspaceKeys)>,
) -> Result<Claimed, OfferVerdict> {
    let failed = |error: bus::BusError| {
        warn!(%key, error = telemetry::error_chain(&error), "claiming failed");
        OfferVerdict::Failed
    };
    // Void by now, or by our clock: a worker whose clock is wrong must not draw the same build for ever.
    if shared.context.bus.now() > offer.deadline_ms {
        return Err(OfferVerdict::Busy);
    }
    let record = current(shared, offer, key, record).await.map_err(failed)??;
    let bus = &shared.context.bus;
    let ttl = Duration::from_secs(record.build.lease_ttl_seconds);
    // The clock of the lease starts at the server after this moment, never before.
    let mut deadline = deadline_after(ttl);
    let asked = tokio::time::Instant::now();
    let holder = LeaseHolder { worker: shared.id.clone(), ttl_seconds: ttl.as_secs() };
    let mut lease = match bus.acquire_lease(key, holder, PATIENCE).await.map_err(failed)? {
        Acquired::Held(lease) => lease,
        Acquired::Taken => return Err(OfferVerdict::Failed),
    };
    crash_point(Step::LeaseHeld);
    // That may have taken long. From here on the build is offered to others.
    if shared.context.bus.now() > offer.deadline_ms {
        let _ = bus.release_lease(&lease).await;
        return Err(OfferVerdict::Busy);
    }
    let invocation = Invocation {
        worker: shared.id.clone(),
        workspace: offer.workspace,
        lease_revision: lease.revision.0,
        started_at_ms: shared.context.bus.now(),
        dispatched_at_us: offer.dispatched_at_us,
        dispatched_at_sequence: offer.dispatched_at_sequence,
        workspace_kind: warm::kind(&record.build, offer.workspace_kind, left),
    };
    let record = record.started(invocation, offer.sequence);
    // When the answer stays in doubt the lease is left to expire: the reaper then sees which it was.
    let started_at = match bus.transition(&record, offer.sequence, PATIENCE).await.map_err(failed)? {
        Written::Won(position) => position,
        Written::Lost(_) => {
            let _ = bus.release_lease(&lease).await;
            return Err(OfferVerdict::Stale);
        }
    };
    crash_point(Step::StartWritten);
    let mut lost = None;
    // A lease taken so lately cannot have run out; an older one must be seen to live before anything runs.
    if asked.elapsed() > ttl / 4 {
        deadline = deadline_after(ttl);
        if !matches!(bus.renew_lease(&mut lease, PATIENCE).await, Ok(Renewed::Held)) {
            debug!(%key, "the lease passed away while the build was claimed");
            lost = Some(Cause::LeaseLost);
        }
    }
    tell(&record);
    Ok(Claimed { key: key.clone(), record, started_at, lease, deadline, lost })
}

/// The record at the offered position, still waiting. Only one that is seen to have moved on is stale: a read may also
/// be older than the offer.
async fn current(
    shared: &Shared,
    offer: &Offer,
    key: &BuildKey,
    record: Option<(Sequence, BuildRecord)>,
) -> Result<Result<BuildRecord, OfferVerdict>, bus::BusError> {
    let fits =
        |(at, record): &(Sequence, BuildRecord)| *at == offer.sequence && record.phase == Phase::Enqueued;
    if let Some(found) = record.filter(fits) {
        return Ok(Ok(found.1));
    }
    Ok(match shared.context.bus.latest(key).await? {
        Some(found) if fits(&found) => Ok(found.1),
        Some((at, _)) if at > offer.sequence => Err(OfferVerdict::Stale),
        Some(_) | None => Err(OfferVerdict::Failed),
    })
}

fn tell(record: &BuildRecord) {
    count(Counter::InvocationsStarted, &[], 1);
    let queued = record.at_ms.since(record.queue.enqueued_at_ms);
    observe(Histogram::BuildQueueSeconds, &[(Label::Priority, record.build.priority.as_str())], queued);
    telemetry::record_span(
        "queued",
        record.build.traceparent.as_deref(),
        SystemTime::from(record.queue.enqueued_at_ms),
        SystemTime::from(record.at_ms),
        &[("forebay.attempt", record.attempt.to_string())],
        None,
    );
}
