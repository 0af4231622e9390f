//! What happens to a build whose run was lost.

use model::{Attempt, BuildRecord, BuildResult, Millis, Outcome, Reason, ReasonCode, Retry, WorkerId};

/// What happens to a build whose run was lost.
#[derive(Debug, Clone, PartialEq)]
pub enum AfterLoss {
    /// It waits again, in its old place.
    Requeue(Box<BuildRecord>),
    /// It is given up.
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

/// Decides for a build in progress under `worker` that was lost for `reason` at `now`.
///
/// A worker that was told to stop is no fault of the build and does not count against its attempts.
pub fn after_loss(record: &BuildRecord, worker: WorkerId, reason: Reason, now: Millis) -> AfterLoss {
    let counts = reason.code != ReasonCode::WorkerDrained;
    if counts && record.attempt >= record.build.max_attempts {
        let Attempt(attempts) = record.attempt;
        let message = format!("given up after {attempts} attempts; the last one: {}", reason.message);
        let result = BuildResult::without_run(Outcome::Lost, reason.code, message);
        return AfterLoss::GiveUp(Box::new(record.finished(result, now)));
    }
    AfterLoss::Requeue(Box::new(record.requeued(Retry { reason, worker }, counts, now)))
}

#[cfg(test)]
mod tests;
