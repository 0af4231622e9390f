//! Writes the fate of a build: requeued or ended.

use std::time::Duration;

use bus::{Bus, BusError, Written};
use model::{
    BuildKey, BuildRecord, BuildResult, Control, Millis, Outcome, Phase, Priority, Reason, ReasonCode,
    Sequence, State,
};
use policy::{AfterLoss, after_loss, overrun_at};
use service::{Step, crash_point, trace_run_ended};
use telemetry::metrics::{Counter, Label, count, expect};
use tracing::{debug, info};

const PATIENCE: Duration = Duration::from_secs(5);
/// Values of labels of metrics.
const LOST: &str = "lost";
const LEASE_EXPIRED: &str = "lease_expired";

/// Requeues or ends a build whose run no longer has a lease. Does nothing if its state or lease has changed.
pub(crate) async fn lost(bus: &Bus, key: &BuildKey) -> Result<(), BusError> {
    let Some((sequence, record)) = bus.records().latest(key).await? else { return Ok(()) };
    let Phase::InProgress { invocation } = &record.phase else { return Ok(()) };
    // Read after the record: a lease that is held now belongs to this run or to a later one.
    if !bus.leases().is_gone(key).await? {
        return Ok(());
    }
    let worker = invocation.worker.clone();
    let message = format!("the lease of worker {worker} expired: it died, hung or lost its connection");
    let reason = Reason { code: ReasonCode::LeaseExpired, message };
    let next = after_loss(&record, worker.clone(), reason, bus.now());
    if let Written::Won(_) = bus.transition(next.record(), sequence, PATIENCE).await? {
        trace_run_ended(bus, &record, next.record());
        match &next {
            AfterLoss::Requeue(_) => {
                count(Counter::BuildsRequeued, &[(Label::Reason, LEASE_EXPIRED)], 1);
                info!(%key, %worker, attempt = %record.attempt, "run lost, the build is requeued");
            }
            AfterLoss::GiveUp(_) => {
                count_finished(LOST, record.build.priority);
                info!(%key, %worker, attempt = %record.attempt, "run lost, the build is ended");
            }
        }
    }
    crash_point(Step::VerdictWritten);
    Ok(())
}

/// Ends a build that has exceeded its time limit in the queue.
pub(crate) async fn waited_too_long(bus: &Bus, key: &BuildKey) -> Result<(), BusError> {
    let Some((sequence, record)) = bus.records().latest(key).await? else { return Ok(()) };
    let now = bus.now();
    if record.state() != State::Enqueued || record.queue.expires_at_ms > now {
        return Ok(());
    }
    let waited = now.since(record.queue.enqueued_at_ms).as_secs();
    let message = format!("queued for {waited} s, the limit is {} s", record.build.queue_timeout_seconds);
    let result = BuildResult::without_run(Outcome::Expired, ReasonCode::QueuedTooLong, message);
    end(bus, key, sequence, &record, result).await
}

/// Ends a build that exceeded the time limit that its worker should have applied. For a build that may still run,
/// returns the time at which it must be ended.
pub(crate) async fn ran_too_long(
    bus: &Bus,
    key: &BuildKey,
    overrun: Duration,
) -> Result<Option<Millis>, BusError> {
    let Some((sequence, record)) = bus.records().latest(key).await? else { return Ok(None) };
    let Phase::InProgress { invocation } = &record.phase else { return Ok(None) };
    let limit = Duration::from_secs(record.build.timeout_seconds);
    let now = bus.now();
    let lease = bus.leases().get(key).await?;
    // The worker reports it with the renewals of its lease.
    let stored_at = lease
        .and_then(|(_, holder)| Some(holder.stored_at_ms?.after(Duration::from_secs(holder.ttl_seconds))));
    let ends_at = overrun_at(invocation.started_at_ms.after(limit), stored_at, overrun);
    if ends_at > now {
        return Ok(Some(ends_at));
    }
    let ran = now.since(invocation.started_at_ms).as_secs();
    let message = format!(
        "running for {ran} s on worker {}, the limit is {} s",
        invocation.worker, record.build.timeout_seconds
    );
    let result = BuildResult::without_run(Outcome::TimedOut, ReasonCode::RunningTooLong, message);
    end(bus, key, sequence, &record, result).await?;
    Ok(None)
}

/// Makes the metrics of lost builds appear as 0 from the start.
pub(crate) fn expect_metrics() {
    expect(Counter::BuildsRequeued, &[(Label::Reason, LEASE_EXPIRED)]);
    for priority in Priority::ALL {
        expect(Counter::BuildsFinished, &[(Label::Outcome, LOST), (Label::Priority, priority.as_str())]);
    }
}

fn count_finished(outcome: &str, priority: Priority) {
    let labels = [(Label::Outcome, outcome), (Label::Priority, priority.as_str())];
    count(Counter::BuildsFinished, &labels, 1);
}

/// Writes FINISHED by compare-and-set, then ends the lease, then notifies the worker: a lost
/// notification costs one renewal.
async fn end(
    bus: &Bus,
    key: &BuildKey,
    sequence: Sequence,
    record: &BuildRecord,
    result: BuildResult,
) -> Result<(), BusError> {
    let outcome = result.outcome.as_str();
    let ended = record.clone().placed(sequence).finished(result, bus.now());
    if let Written::Lost(_) = bus.transition(&ended, sequence, PATIENCE).await? {
        return Ok(());
    }
    trace_run_ended(bus, record, &ended);
    count_finished(outcome, ended.build.priority);
    info!(%key, outcome, "build ended");
    crash_point(Step::OverdueWritten);
    let Some(invocation) = record.invocation() else { return Ok(()) };
    if let Err(error) = bus.leases().revoke(key).await {
        debug!(%key, %error, "cannot revoke the lease; the worker will notice the end at its next renewal");
    }
    let order = Control::Cancel { group: key.group.clone(), id: key.id, attempt: record.attempt };
    if let Err(error) = bus.send(&invocation.worker, &order).await {
        let error = telemetry::error_chain(&error);
        debug!(%key, error, "cannot notify the worker; it will notice the end at its next renewal");
    }
    Ok(())
}
