//! Decides what happens to an execution when a copy of it ends, or when it has waited too long.

use std::time::Duration;

use model::{
    Attempt, ExecutionOutcome, ExecutionPhase, ExecutionRecord, ExecutorId, Millis, Requirements, Sequence,
};

/// `google.rpc.Code` UNAVAILABLE: nothing is wrong with the action, so a client may retry.
const UNAVAILABLE: i32 = 14;

/// Expiry of an execution that must not wait at all; 0 would mean never.
pub const LONG_AGO: Millis = Millis(1);

/// Minimum time that an execution may wait after an executor returned it without a run: a claim in time means that it
/// did not wait too long.
pub const RETURNED_WAIT: Duration = Duration::from_secs(60);

/// Factor on the memory of an action that ran out of memory.
const GROWTH: u64 = 2;

/// Bytes of memory for the next run of an action that ran out of `had` bytes.
pub(super) fn grown(had: u64) -> u64 {
    had.saturating_mul(GROWTH)
}

/// How one copy of an execution ended.
#[derive(Debug, Clone, PartialEq)]
pub enum CopyEnd {
    /// The command ended or a limit that its client set was exceeded; this is its outcome.
    Outcome(ExecutionOutcome),
    /// The copy ran out of memory.
    OutOfMemory {
        /// Outcome of the execution if it is not tried again.
        outcome: ExecutionOutcome,
        /// Bytes of memory that the copy had.
        had: u64,
        /// Bytes of memory that the largest executor can provide.
        most: u64,
    },
    /// The machine failed the copy, or was lost.
    Infrastructure {
        /// Description of the failure for messages.
        reason: String,
    },
}

/// What happens to an execution after one of its copies ended.
#[derive(Debug, Clone, PartialEq)]
pub enum AfterCopy {
    /// The execution has its result.
    Finish(Box<ExecutionRecord>),
    /// The other copies of the execution go on.
    GoOn(Box<ExecutionRecord>),
    /// The execution is requeued at its old place.
    Requeue(Box<ExecutionRecord>),
    /// The execution is given up after its last attempt.
    GiveUp(Box<ExecutionRecord>),
}

impl AfterCopy {
    /// The record to write.
    pub fn record(&self) -> &ExecutionRecord {
        match self {
            Self::Finish(record) | Self::GoOn(record) | Self::Requeue(record) | Self::GiveUp(record) => {
                record
            }
        }
    }
}

/// Decides what follows for an execution, whose last record at `sequence` is `record`, when the copy on `executor`
/// ended as `end` says. `None` if the execution already has its result.
///
/// The first success is the result, whatever the other copies do. A failure is the result only when no other copy is
/// left. A failure of the command is never tried again; a failure of the machine is tried elsewhere while attempts are
/// left. An action that runs out of memory is tried again with more, up to the largest available amount.
pub fn after_copy(
    record: &ExecutionRecord,
    sequence: Sequence,
    executor: &ExecutorId,
    end: CopyEnd,
    now: Millis,
) -> Option<AfterCopy> {
    if record.outcome().is_some() {
        return None;
    }
    let finish = |outcome| AfterCopy::Finish(Box::new(record.finished(sequence, outcome, now)));
    let (reason, failure, grown) = match end {
        CopyEnd::Outcome(outcome) if outcome.is_success() => return Some(finish(outcome)),
        CopyEnd::Outcome(outcome) => (describe(&outcome), Some(outcome), None),
        CopyEnd::OutOfMemory { outcome, had, most } => {
            let grown = grown(had).min(most);
            (describe(&outcome), Some(outcome), Some(grown).filter(|grown| *grown > had))
        }
        CopyEnd::Infrastructure { reason } => (reason, None, None),
    };
    if record.copies() > 1 {
        let next = record.copy_ended(sequence, reason, executor.clone(), failure, now);
        return Some(AfterCopy::GoOn(Box::new(next)));
    }
    let is_last = record.attempt >= record.execution.max_attempts;
    let failure = match (failure, grown) {
        (Some(outcome), None) => return Some(finish(outcome)),
        (Some(outcome), Some(_)) if is_last => return Some(finish(outcome)),
        (Some(_), Some(_)) => None,
        (None, _) => record.so_far.failure.clone(),
    };
    if let Some(failure) = failure {
        return Some(finish(*failure));
    }
    if is_last {
        let Attempt(attempts) = record.attempt;
        let message = format!("given up after {attempts} attempts; the last one: {reason}");
        let ended = record.finished(sequence, ExecutionOutcome::without_run(UNAVAILABLE, message), now);
        return Some(AfterCopy::GiveUp(Box::new(ended)));
    }
    let mut next = record.requeued(sequence, reason, Some(executor.clone()), true, now);
    next.so_far.memory_bytes = next.so_far.memory_bytes.max(grown);
    if grown.is_some() {
        // Running out of memory is not a fault of the executor.
        next.so_far.avoid.clone_from(&record.so_far.avoid);
    }
    Some(AfterCopy::Requeue(Box::new(next)))
}

/// Describes in a few words how a copy failed.
fn describe(outcome: &ExecutionOutcome) -> String {
    match (outcome.message.as_str(), outcome.exit_code) {
        ("", Some(code)) => format!("the command exited with code {code}"),
        ("", None) => format!("the execution ended with code {}", outcome.code),
        (message, _) => message.to_owned(),
    }
}

/// Names the executors that meet the requirements, as the part of a sentence after `executor`: ` with Arch = "arm64"`.
pub fn offering(requirements: &Requirements) -> String {
    if requirements.properties.is_empty() { String::new() } else { format!(" with {requirements}") }
}

/// State of the executors that can run an execution when it has waited too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolState {
    /// Number of live executors.
    pub executors: u64,
    /// Number of waiting executions with the same requirements.
    pub waiting: u64,
    /// Number of executions that run there.
    pub running: u64,
}

/// Until when an execution may wait while no executor has it: after a run it gets its whole waiting time again. After a
/// failed copy it waits only beside another copy: without one it ends as the failed copy did.
pub fn waits_until(record: &ExecutionRecord) -> Millis {
    if record.so_far.failure.is_some() {
        // Long ago by any clock, including one that was read just before this was written.
        return LONG_AGO;
    }
    let (accepted, expires) = (record.execution.accepted_at_ms, record.execution.expires_at_ms);
    record.waits_since().max(accepted).after(expires.since(accepted))
}

/// Ends an execution that waits, that no executor has, and that has waited too long at `now`. `None` if it has not
/// waited too long, or already has its result.
pub fn overdue(
    record: &ExecutionRecord,
    sequence: Sequence,
    state: PoolState,
    now: Millis,
) -> Option<ExecutionRecord> {
    let before = match &record.phase {
        ExecutionPhase::Finished(_) => return None,
        ExecutionPhase::Requeued { reason, .. } => Some(reason),
        ExecutionPhase::Accepted
        | ExecutionPhase::Hedged
        | ExecutionPhase::CopyEnded { .. }
        | ExecutionPhase::Raised => None,
    };
    if let Some(failure) = &record.so_far.failure {
        return Some(record.finished(sequence, (**failure).clone(), now));
    }
    if waits_until(record) > now {
        return None;
    }
    let with = offering(&record.execution.requirements);
    let PoolState { running, waiting, .. } = state;
    let why = match state.executors {
        0 => format!("no executor{with} is live"),
        1 => format!("the only executor{with} is full: {running} running, {waiting} waiting"),
        many => format!("all {many} executors{with} are full: {running} running, {waiting} waiting"),
    };
    let waited = now.since(record.waits_since()).as_secs();
    let again = before.map(|reason| format!(" after its first run was lost ({reason})")).unwrap_or_default();
    let message = format!("waited {waited} s{again}: {why}");
    Some(record.finished(sequence, ExecutionOutcome::without_run(UNAVAILABLE, message), now))
}

#[cfg(test)]
mod tests;
