//! What becomes of an execution whose executor was lost, or that waited too long.

use model::{Attempt, ExecutionOutcome, ExecutionPhase, ExecutionRecord, Millis, Sequence};

/// `google.rpc.Code` UNAVAILABLE: nothing is wrong with the action, a client may ask again.
const UNAVAILABLE: i32 = 14;

/// What happens to an execution whose executor was lost.
#[derive(Debug, Clone, PartialEq)]
pub enum AfterExecutorLoss {
    /// It waits again, in its old place.
    Requeue(Box<ExecutionRecord>),
    /// It is given up.
    GiveUp(Box<ExecutionRecord>),
}

impl AfterExecutorLoss {
    /// The record to write.
    pub fn record(&self) -> &ExecutionRecord {
        match self {
            Self::Requeue(record) | Self::GiveUp(record) => record,
        }
    }
}

/// Decides for an execution whose last record, at `sequence`, is `record` and whose executor was lost for `reason`.
/// `None` when it has its result already.
pub fn after_executor_loss(
    record: &ExecutionRecord,
    sequence: Sequence,
    reason: &str,
    now: Millis,
) -> Option<AfterExecutorLoss> {
    if record.outcome().is_some() {
        return None;
    }
    if record.attempt < record.execution.max_attempts {
        let next = record.requeued(sequence, reason.to_owned(), now);
        return Some(AfterExecutorLoss::Requeue(Box::new(next)));
    }
    let Attempt(attempts) = record.attempt;
    let message = format!("given up after {attempts} attempts; the last one: {reason}");
    let ended = record.finished(sequence, unavailable(message), now);
    Some(AfterExecutorLoss::GiveUp(Box::new(ended)))
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

/// Until when an execution accepted at `accepted` may wait that was told `expires` then and waits since `since`: one that
/// waits again after a run has its whole time again.
pub fn waits_until(accepted: Millis, expires: Millis, since: Millis) -> Millis {
    since.max(accepted).after(expires.since(accepted))
}

/// The end of an execution that waits and has waited too long at `now`. `None` when it has not, or has its result.
pub fn overdue(
    record: &ExecutionRecord,
    sequence: Sequence,
    state: PoolState,
    now: Millis,
) -> Option<ExecutionRecord> {
    let (since, before) = match &record.phase {
        ExecutionPhase::Finished(_) => return None,
        ExecutionPhase::Accepted => (record.execution.accepted_at_ms, None),
        ExecutionPhase::Requeued { reason } => (record.at_ms, Some(reason)),
    };
    let execution = &record.execution;
    if waits_until(execution.accepted_at_ms, execution.expires_at_ms, since) > now {
        return None;
    }
    let pool = &execution.pool;
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
    let waited = now.since(since).as_secs();
    let again = before.map(|reason| format!(" after its first run was lost ({reason})")).unwrap_or_default();
    let message = format!("waited {waited} s{again}: {why}");
    Some(record.finished(sequence, unavailable(message), now))
}

fn unavailable(message: String) -> ExecutionOutcome {
    ExecutionOutcome {
        executor: None,
        code: UNAVAILABLE,
        message,
        missing: Vec::new(),
        exit_code: None,
        result: None,
        server_logs: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
