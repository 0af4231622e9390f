//! Claims a build: acquires the lease, publishes INVOCATION_STARTED, then checks the clock.

use std::time::Duration;

use bus::{Acquired, Bus, Lease, LeaseHolder, Renewed, Written};
use model::{
    BuildKey, BuildRecord, Group, Invocation, InvocationId, Offer, OfferVerdict, Phase, Sequence,
    WorkspaceKeys,
};
use service::{Step, crash_point};
use shim::Deadline;
use telemetry::metrics::{Counter, Histogram, Label, count, observe};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{lease_keeper::deadline_after, shared::Shared, stop::Cause, warm};

/// A build claimed by this worker.
pub(crate) struct Claimed {
    pub(crate) key: BuildKey,
    /// The record, including its invocation.
    pub(crate) record: BuildRecord,
    /// Position of its INVOCATION_STARTED.
    pub(crate) started_at: Sequence,
    pub(crate) lease: Lease,
    /// When its processes must be dead unless the lease is renewed.
    pub(crate) deadline: Deadline,
    /// Set if the lease was lost during the claim: nothing may run.
    pub(crate) lost: Option<Cause>,
}

const PATIENCE: Duration = Duration::from_secs(2);

/// Claims the offered build, or returns why not. `left` holds the group and keys of the files in the workspace.
pub(crate) async fn claim(
    shared: &Shared,
    offer: &Offer,
    key: &BuildKey,
    record: Option<(Sequence, BuildRecord)>,
    left: Option<(&Group, &WorkspaceKeys)>,
) -> Result<Claimed, OfferVerdict> {
    let begun = Instant::now();
    let claimed = try_claim(shared, offer, key, record, left).await;
    let status = match &claimed {
        Ok(_) | Err(OfferVerdict::Started) => "ok",
        Err(OfferVerdict::Busy) => "busy",
        Err(OfferVerdict::Stale) => "stale",
        Err(OfferVerdict::Failed) => "unavailable",
    };
    count(Counter::ApiRequests, &[(Label::Endpoint, "claim"), (Label::Status, status)], 1);
    observe(Histogram::ApiSeconds, &[(Label::Endpoint, "claim")], begun.elapsed());
    claimed
}

async fn try_claim(
    shared: &Shared,
    offer: &Offer,
    key: &BuildKey,
    record: Option<(Sequence, BuildRecord)>,
    left: Option<(&Group, &WorkspaceKeys)>,
) -> Result<Claimed, OfferVerdict> {
    let failed = |error: bus::BusError| {
        warn!(%key, error = telemetry::error_chain(&error), "cannot claim the build");
        OfferVerdict::Failed
    };
    // The offer has expired, at least by the local clock: a worker with a wrong clock must not claim the same
    // build again and again.
    if shared.context.bus.now() > offer.deadline_ms {
        debug!(%key, "the offer expired before its claim began");
        return Err(OfferVerdict::Busy);
    }
    let record = current(shared, offer, key, record).await.map_err(failed)??;
    let bus = &shared.context.bus;
    let ttl = Duration::from_secs(record.build.lease_ttl_seconds);
    // The server starts the lease's time after this moment, never before.
    let mut deadline = deadline_after(ttl);
    let asked = Instant::now();
    let holder = LeaseHolder { worker: shared.id.clone(), ttl_seconds: ttl.as_secs(), stored_at_ms: None };
    let mut lease = match bus.leases().acquire(key, holder, PATIENCE).await.map_err(failed)? {
        Acquired::Held(lease) => lease,
        Acquired::Taken => return Err(taken(bus, offer, key).await.map_err(failed)?),
    };
    crash_point(Step::LeaseHeld);
    // Acquiring may have been slow. After the offer's deadline the build is offered to other workers.
    if shared.context.bus.now() > offer.deadline_ms {
        debug!(%key, "the offer expired while its claim acquired the lease");
        release(bus, &lease).await;
        return Err(OfferVerdict::Busy);
    }
    let invocation = Invocation {
        id: Some(InvocationId::generate()),
        worker: shared.id.clone(),
        workspace: offer.workspace,
        lease_revision: lease.revision.0,
        started_at_ms: shared.context.bus.now(),
        dispatched_at_us: offer.dispatched_at_us,
        dispatched_at_sequence: offer.dispatched_at_sequence,
        workspace_kind: warm::kind(&record.build, offer.workspace_kind, left),
    };
    let record = record.started(invocation, offer.sequence);
    // If the outcome of the write stays unknown, the lease is left to expire: the reaper then sees which it was.
    let started_at = match bus.transition(&record, offer.sequence, PATIENCE).await.map_err(failed)? {
        Written::Won(position) => position,
        Written::Lost(_) => {
            release(bus, &lease).await;
            return Err(OfferVerdict::Stale);
        }
    };
    crash_point(Step::StartWritten);
    let mut lost = None;
    // A lease acquired recently cannot have expired; an older one must be confirmed before a process may run.
    if asked.elapsed() > ttl / 4 {
        deadline = deadline_after(ttl);
        if !matches!(bus.leases().renew(&mut lease, PATIENCE).await, Ok(Renewed::Held)) {
            debug!(%key, "the lease was lost during the claim");
            lost = Some(Cause::LeaseLost);
        }
    }
    record_metrics(&record);
    Ok(Claimed { key: key.clone(), record, started_at, lease, deadline, lost })
}

/// The verdict on a build whose lease another worker holds. The record in an offer may be out of date: then the build
/// runs elsewhere. Otherwise its last run is about to release the lease.
async fn taken(bus: &Bus, offer: &Offer, key: &BuildKey) -> Result<OfferVerdict, bus::BusError> {
    let moved_on = bus.records().latest(key).await?.is_some_and(|(at, _)| at > offer.sequence);
    Ok(if moved_on { OfferVerdict::Stale } else { OfferVerdict::Failed })
}

/// Releases a lease whose build does not run here.
async fn release(bus: &Bus, lease: &Lease) {
    if let Err(error) = bus.leases().release(lease).await {
        debug!(key = %lease.key, error = telemetry::error_chain(&error), "cannot release the lease; it will expire");
    }
}

/// The record at the offered position, still waiting. An offer is stale only if the record has moved past it: a read
/// may also return an older record than the offer.
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
    Ok(match shared.context.bus.records().latest(key).await? {
        Some(found) if fits(&found) => Ok(found.1),
        Some((at, _)) if at > offer.sequence => Err(OfferVerdict::Stale),
        Some(_) | None => Err(OfferVerdict::Failed),
    })
}

fn record_metrics(record: &BuildRecord) {
    count(Counter::InvocationsStarted, &[], 1);
    let queued = record.at_ms.since(record.queue.enqueued_at_ms);
    observe(Histogram::BuildQueueSeconds, &[(Label::Priority, record.build.priority.as_str())], queued);
}
