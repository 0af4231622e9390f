//! What becomes of an execution when a copy of it ends, or when it has waited too long.

use model::{Attempt, ExecutionOutcome, ExecutionPhase, ExecutionRecord, ExecutorId, Millis, Sequence};

/// `google.rpc.Code` UNAVAILABLE: nothing is wrong with the action, a client may ask again.
const UNAVAILABLE: i32 = 14;

/// When what must not wait at all should have ended. 0 would be never.
const LONG_AGO: Millis = Millis(1);

/// How much more memory an action is given that ran out of what it had.
const GROWTH: u64 = 2;

/// What an action is given next that ran out of `had` bytes of memory.
pub(super) fn grown(had: u64) -> u64 {
    had.saturating_mul(GROWTH)
}

/// How one copy of an execution ended.
#[derive(Debug, Clone, PartialEq)]
pub enum CopyEnd {
    /// As its command, or what its client asks for, makes it end.
    Outcome(ExecutionOutcome),
    /// It ran out of memory.
    OutOfMemory {
        /// How it ended, should it not be tried again.
        outcome: ExecutionOutcome,
        /// Bytes that it had.
        had: u64,
        /// Bytes that the largest executor can give.
        most: u64,
    },
    /// The machine failed it, or is gone.
    Infrastructure {
        /// What happened.
        reason: String,
    },
}

/// What happens to an execution of which one copy ended.
#[derive(Debug, Clone, PartialEq)]
pub enum AfterCopy {
    /// It has its result.
    Finish(Box<ExecutionRecord>),
    /// Its other copies go on.
    GoOn(Box<ExecutionRecord>),
    /// It waits again, in its old place.
    Requeue(Box<ExecutionRecord>),
    /// It is given up after its last attempt.
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

/// Decides for an execution whose last record, at `sequence`, is `record`, when the copy that `executor` had ended so.
/// `None` when it has its result already.
///
/// The first success is the result, whatever the other copies do. A failure is the result only when no other copy is left;
/// one of the command is never tried again, one of the machine is tried elsewhere as long as attempts are left. What runs
/// out of memory is tried again with more, up to what can be had.
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
        // It is no fault of the executor.
        next.so_far.avoid.clone_from(&record.so_far.avoid);
    }
    Some(AfterCopy::Requeue(Box::new(next)))
}

/// How a copy failed, in a few words.
fn describe(outcome: &ExecutionOutcome) -> String {
    match (outcome.message.as_str(), outcome.exit_code) {
        ("", Some(code)) => format!("its command exited with {code}"),
        ("", None) => format!("it ended with code {}", outcome.code),
        (message, _) => message.to_owned(),
    }
}

/// What a pool looks like when an execution of it has waited too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolState {
    /// Executors that live.
    pub executors: u64,
    /// Executions that wait.
    pub waiting: u64,
    /// Executions that run.
    pub running: u64,
}

/// Until when an execution may wait while nobody has it: one that waits again after a run has its whole time again. One of
/// which a copy failed waits only beside another copy: without one it ends as the first did.
pub fn waits_until(record: &ExecutionRecord) -> Millis {
    if record.so_far.failure.is_some() {
        // Long ago by any clock, also by one that was read just before this was written.
        return LONG_AGO;
    }
    let (accepted, expires) = (record.execution.accepted_at_ms, record.execution.expires_at_ms);
    record.waits_since().max(accepted).after(expires.since(accepted))
}

/// The end of an execution that waits, that nobody has, and that has waited too long at `now`. `None` when it has not, or has
/// its result.
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
    let pool = &record.execution.pool;
    let why = match state.executors {
        0 => format!("pool {pool} has no executor"),
        1 => {
            format!("the one executor of pool {pool} is full: {} run, {} wait", state.running, state.waiting)
        }
        many => {
            format!(
                "the {many} executors of pool {pool} are full: {} run, {} wait",
                state.running, state.waiting
            )
        }
    };
    let waited = now.since(record.waits_since()).as_secs();
    let again = before.map(|reason| format!(" after its first run was lost ({reason})")).unwrap_or_default();
    let message = format!("waited {waited} s{again}: {why}");
    Some(record.finished(sequence, ExecutionOutcome::without_run(UNAVAILABLE, message), now))
}

#[cfg(test)]
mod tests;
