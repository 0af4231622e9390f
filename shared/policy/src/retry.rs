//! Decides what happens to a build whose run was lost, and when a run counts as too long.

use std::time::Duration;

use model::{Attempt, BuildRecord, BuildResult, Millis, Outcome, Reason, ReasonCode, Retry, WorkerId};

/// The decision about a build whose run was lost.
#[derive(Debug, Clone, PartialEq)]
pub enum AfterLoss {
    /// The build is requeued at its old place.
    Requeue(Box<BuildRecord>),
    /// The build is given up after its last attempt.
    GiveUp(Box<BuildRecord>),
}

impl AfterLoss {
    /// The record to write.
    pub fn record(&self) -> &BuildRecord {
        match self {
            Self::Requeue(record) | Self::GiveUp(record) => record,
        }
    }
}

/// Decides about a build in progress on `worker` that was lost for `reason` at `now`.
///
/// A worker that was asked to stop is not a fault of the build and does not count against its attempts.
pub fn after_loss(record: &BuildRecord, worker: WorkerId, reason: Reason, now: Millis) -> AfterLoss {
    let counts = reason.code != ReasonCode::WorkerDrained;
    if counts && record.attempt >= record.build.max_attempts {
        let Attempt(attempts) = record.attempt;
        let message = format!("given up after {attempts} attempts; the last one: {}", reason.message);
        let result = BuildResult::without_run(Outcome::Lost, reason.code, message);
        return AfterLoss::GiveUp(Box::new(record.finished(result, now)));
    }
    AfterLoss::Requeue(Box::new(record.requeued(
        Retry { reason, worker, invocation: record.invocation_id() },
        counts,
        now,
    )))
}

/// Whether a build whose context a worker could not prepare is tried on another one. What two workers
/// cannot prepare is unavailable.
pub fn may_be_prepared_elsewhere(record: &BuildRecord) -> bool {
    let again = |retry: &Retry| retry.reason.code == ReasonCode::ContextUnavailable;
    record.attempt < record.build.max_attempts && !record.queue.retry.as_ref().is_some_and(again)
}

/// Whether the build of this record, which a worker gave back after attempt `given_back` because it could not prepare the context,
/// shows a fault of that worker: another one prepared it. `None` while that is open.
pub fn was_prepared_elsewhere(record: &BuildRecord, given_back: Attempt, worker: &WorkerId) -> Option<bool> {
    let result = record.result()?;
    let by_other = record.invocation().is_some_and(|run| run.worker != *worker);
    let has_run = result.command_started_at_us.is_some();
    Some(record.attempt > given_back && by_other && has_run)
}

/// The time at which a build in progress must be ended: `overrun` has passed since its timeout at `timeout_at`, and
/// since its worker last stored a part of its outputs at `stored_at`. The timeout does not include
/// the storing of outputs.
pub fn overrun_at(timeout_at: Millis, stored_at: Option<Millis>, overrun: Duration) -> Millis {
    stored_at.map_or(timeout_at, |at| at.max(timeout_at)).after(overrun)
}

#[cfg(test)]
mod tests;
