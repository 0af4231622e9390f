//! Cancelling a build on request.

use std::time::Duration;

use bus::{Bus, ControlReply, NoAnswer, Written};
use model::{
    ApiError, BuildKey, BuildRecord, BuildResult, BuildUse, BuildView, CancelReply, CancelRequest, Control,
    ErrorCode, Outcome, ReasonCode, State,
};
use service::{Step, crash_point, trace_run_ended};
use telemetry::metrics::{Counter, Label, count};
use tracing::debug;

use crate::{archived, failure::unavailable};

const PATIENCE: Duration = Duration::from_secs(4);
/// Time limit for a worker to report what a build has used: the cancellation must not wait long for a worker
/// that does not answer.
const MEASURED: Duration = Duration::from_millis(300);

/// Writes FINISHED (cancelled) by compare-and-set, then revokes the lease, then notifies the worker. A lost
/// notification costs one lease renewal.
pub(crate) async fn cancel(
    bus: &Bus,
    key: &BuildKey,
    request: CancelRequest,
) -> Result<CancelReply, ApiError> {
    let missing =
        || ApiError::new(ErrorCode::NotFound, format!("build {} not found in group {}", key.id, key.group));
    let Some(mut latest) = bus.records().latest(key).await.map_err(unavailable)? else {
        // An expired build has ended.
        return Ok(CancelReply { cancelled: false, build: archived::build(bus, key).await? });
    };
    loop {
        let (sequence, record) = latest;
        if record.state() == State::Finished {
            // Another process may have died between ending the build and notifying the worker.
            if record.result().is_some_and(|result| result.outcome == Outcome::Cancelled) {
                notify_worker(bus, key, &record).await;
            }
            return Ok(CancelReply { cancelled: false, build: BuildView::new(sequence, record) });
        }
        let why = request.reason.clone().unwrap_or_else(|| "cancelled on request".to_owned());
        let result = BuildResult::without_run(Outcome::Cancelled, ReasonCode::Cancelled, why);
        let result = with_use(bus, key, &record, result).await;
        let before = record.placed(sequence);
        let ended = before.finished(result, bus.now());
        match bus.transition(&ended, sequence, PATIENCE).await.map_err(unavailable)? {
            Written::Won(position) => {
                trace_run_ended(bus, &before, &ended);
                let priority = ended.build.priority.as_str();
                let labels = [(Label::Outcome, "cancelled"), (Label::Priority, priority)];
                count(Counter::BuildsFinished, &labels, 1);
                crash_point(Step::CancelWritten);
                notify_worker(bus, key, &ended).await;
                return Ok(CancelReply { cancelled: true, build: BuildView::new(position, ended) });
            }
            Written::Lost(Some(current)) => latest = *current,
            Written::Lost(None) => return Err(missing()),
        }
    }
}

/// Adds what the run has used until now, if its worker reports it in time; the run time is in the record.
async fn with_use(bus: &Bus, key: &BuildKey, record: &BuildRecord, result: BuildResult) -> BuildResult {
    let Some(invocation) = record.invocation().filter(|_| record.state() == State::InProgress) else {
        return result;
    };
    let order = Control::Measure { group: key.group.clone(), id: key.id, attempt: record.attempt };
    let answer = match bus.answer_to(&invocation.worker, &order, Some(MEASURED)).await {
        Ok(ControlReply::Used(used)) => Some(used),
        Ok(ControlReply::Received {}) => {
            debug!(%key, "the worker's answer does not tell what the build has used");
            None
        }
        Err(error @ NoAnswer::Unreadable { .. }) => {
            debug!(%key, error = telemetry::error_chain(&error), "cannot read what the build has used");
            None
        }
        Err(error @ (NoAnswer::NoListener { .. } | NoAnswer::TooLarge { .. } | NoAnswer::Unknown { .. })) => {
            let error = telemetry::error_chain(&error);
            debug!(%key, error, "cannot ask the worker what the build has used");
            None
        }
    };
    if let Some(BuildUse { wall_seconds, cpu_seconds, usage }) = answer {
        return BuildResult { wall_seconds, cpu_seconds, usage, ..result };
    }
    let wall_seconds = bus.now().since(invocation.started_at_ms).as_secs_f64();
    BuildResult { wall_seconds, ..result }
}

async fn notify_worker(bus: &Bus, key: &BuildKey, record: &BuildRecord) {
    let Some(invocation) = record.invocation() else { return };
    if let Err(error) = bus.leases().revoke(key).await {
        debug!(%key, %error, "cannot revoke the lease; the worker will notice the end at its next renewal");
    }
    crash_point(Step::CancelRevoked);
    let order = Control::Cancel { group: key.group.clone(), id: key.id, attempt: record.attempt };
    if let Err(error) = bus.send(&invocation.worker, &order).await {
        let error = telemetry::error_chain(&error);
        debug!(%key, error, "cannot notify the worker; it will notice the end at its next renewal");
    }
}
