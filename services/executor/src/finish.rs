//! Writes how a copy of an execution ended: the first result that is written counts.

use std::{sync::Arc, time::Duration};

use bus::Written;
use model::{
    Attempt, BlobDigest, Claimed, Esu, ExecutionOutcome, ExecutionPhase, ExecutionRecord, ExecutorId, Millis,
    Pool, Sequence,
};
use policy::actions::{AfterCopy, CopyEnd, after_copy};
use service::{Step, crash_point, trace_copy_ended};
use telemetry::{
    metrics::{Counter, Label, count},
    spans,
};
use trace::{CopyTimes, Ended};
use tracing::{debug, warn};

use crate::{
    held_actions::{ActionHandle, Work},
    shared::Shared,
};

const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(200);

/// Writes how an action ended, unless its end is not wanted, and forgets it.
pub(crate) async fn write_end(
    shared: Arc<Shared>,
    work: Work,
    (end, times): (Option<CopyEnd>, CopyTimes),
    used: Esu,
) {
    let Work { claimed, handle, .. } = work;
    let bus = &shared.context.bus;
    let key = claimed.record.execution.key();
    shared.usage.report_to_build(bus, &claimed.record.execution, used).await;
    let begun = spans::trace_enabled().then(|| claimed.record.clone());
    let after = if let Some(end) = end {
        finish(&shared, *claimed, &handle, end).await
    } else {
        debug!(%key, "action stopped");
        None
    };
    if let Some(claimed) = &begun {
        let (after, at) = (after.as_ref().map(AfterCopy::record), bus.clock().system_time());
        trace_copy_ended(bus, &Ended { claimed, lost: false, after, executor: &shared.id, at }, &times);
    }
    if after.is_none() {
        shared.actions.room_changed.notify_one();
    }
    shared.actions.release(&key, &handle);
}

/// Writes the consequence of the copy's end after the claimed record, or after its successor. A
/// success counts whatever happened in the meantime. Retries until it is written or the lease is
/// lost: then the action runs elsewhere. Returns what was written, which also reported the room.
async fn finish(
    shared: &Shared,
    claimed: Claimed,
    handle: &ActionHandle,
    mut end: CopyEnd,
) -> Option<AfterCopy> {
    match &mut end {
        CopyEnd::OutOfMemory { most, outcome, .. } => {
            outcome.home = Some(shared.home.clone());
            *most = memory_most(shared).await;
        }
        CopyEnd::Outcome(outcome) => {
            outcome.home = Some(shared.home.clone());
            prove_logs(shared, &claimed, outcome).await;
        }
        CopyEnd::Infrastructure { .. } => {}
    }
    let key = claimed.record.execution.key();
    let copy = Copy { executor: &shared.id, attempt: claimed.record.attempt, since: claimed.sequence };
    let mut last = (claimed.sequence, claimed.record);
    loop {
        let (sequence, record) = &last;
        let Some(after) = copy.follows(record, *sequence, &end, shared.context.bus.now()) else {
            debug!(%key, "the end of this copy no longer changes anything");
            return None;
        };
        let (bus, room) = (&shared.context.bus, shared.room_report());
        match bus.transition_with_room(after.record(), *sequence, &room, PATIENCE).await {
            Ok(Written::Won(_)) => {
                crash_point(Step::ActionResultWritten);
                log_end(&after, &end);
                return Some(after);
            }
            Ok(Written::Lost(Some(found))) => last = *found,
            Ok(Written::Lost(None)) => {
                debug!(%key, "the action no longer exists");
                return None;
            }
            Err(error) => {
                warn!(%key, error = telemetry::error_chain(&error), "retrying to write the end of an action");
                tokio::select! {
                    () = handle.stop.cancelled() => return None,
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
    }
}

/// Records that the trust zone of an execution has the logs of what ran beside its command.
async fn prove_logs(shared: &Shared, claimed: &Claimed, outcome: &ExecutionOutcome) {
    let execution = &claimed.record.execution;
    if execution.zone.is_none() || outcome.server_logs.is_empty() {
        return;
    }
    let logs: Vec<BlobDigest> = outcome.server_logs.iter().map(|(_, log)| *log).collect();
    if let Err(error) = shared.store_of(execution).prove(&logs).await {
        let (key, error) = (execution.key(), telemetry::error_chain(&error));
        warn!(%key, error, "the zone of an action cannot read the logs of its services");
    }
}

/// One copy of an execution.
#[derive(Debug, Clone, Copy)]
struct Copy<'a> {
    executor: &'a ExecutorId,
    /// The attempt that it belongs to.
    attempt: Attempt,
    /// The position of the record after which it was claimed.
    since: Sequence,
}

impl Copy<'_> {
    /// The record to write after `record`, the last one, for this end of the copy. `None` if nothing is to be
    /// written: there is a result, or the copy failed and no longer counts.
    fn follows(
        &self,
        record: &ExecutionRecord,
        sequence: Sequence,
        end: &CopyEnd,
        now: Millis,
    ) -> Option<AfterCopy> {
        let is_success = matches!(end, CopyEnd::Outcome(outcome) if outcome.is_success());
        if !is_success && (record.attempt != self.attempt || self.is_known(record, sequence)) {
            return None;
        }
        after_copy(record, sequence, self.executor, end.clone(), now)
    }

    /// Whether the end of this copy is already recorded: by this executor, if the answer was lost, or by a scheduler
    /// that considered it lost.
    fn is_known(&self, record: &ExecutionRecord, sequence: Sequence) -> bool {
        let ours =
            matches!(&record.phase, ExecutionPhase::CopyEnded { executor, .. } if executor == self.executor);
        ours && sequence > self.since
    }
}

/// Maximum memory of an action in bytes: the capacity of the largest executor of the pool, limited by the settings.
async fn memory_most(shared: &Shared) -> u64 {
    let ours = &shared.pool;
    let known = match shared.context.bus.buckets().get::<Pool>(&ours.name).await {
        Ok((_, known)) => known,
        Err(error) => {
            debug!(error = telemetry::error_chain(&error), "cannot read the capacity of the pool");
            None
        }
    };
    let largest = known.map_or(0, |pool| pool.capacity.memory_bytes).max(ours.capacity.memory_bytes);
    shared.settings.action_limits.memory_bytes.map_or(largest, |most| largest.min(most))
}

fn log_end(after: &AfterCopy, end: &CopyEnd) {
    let execution = &after.record().execution;
    let key = execution.key();
    let label = match end {
        CopyEnd::Outcome(outcome) => label(outcome),
        CopyEnd::OutOfMemory { .. } => "out_of_memory",
        CopyEnd::Infrastructure { .. } => "infrastructure",
    };
    count(Counter::ActionsRun, &[(Label::Outcome, label)], 1);
    match (after, end) {
        (AfterCopy::Requeue(_) | AfterCopy::GiveUp(_), CopyEnd::Infrastructure { reason }) => {
            warn!(%key, reason, "an action failed because of this machine");
        }
        (AfterCopy::Requeue(next), _) => {
            debug!(%key, label, memory = next.so_far.memory_bytes, "requeued");
        }
        (AfterCopy::Finish(_) | AfterCopy::GoOn(_) | AfterCopy::GiveUp(_), _) => {
            debug!(%key, label, "action ended");
        }
    }
}

fn label(outcome: &ExecutionOutcome) -> &'static str {
    match (outcome.code, outcome.exit_code) {
        (0, Some(0)) => "succeeded",
        (0, _) => "failed",
        (4, _) => "timed_out",
        _ => "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const NOW: Millis = Millis(7);

    fn us() -> ExecutorId {
        "executor-us".parse().unwrap()
    }

    fn failed(exit_code: i32) -> CopyEnd {
        CopyEnd::Outcome(ExecutionOutcome {
            exit_code: Some(exit_code),
            ..ExecutionOutcome::without_run(0, String::new())
        })
    }

    fn broken() -> CopyEnd {
        CopyEnd::Infrastructure { reason: "no slot starts".to_owned() }
    }

    /// What follows from the end of a copy that was claimed after the first record.
    fn follows(record: &ExecutionRecord, sequence: u64, end: &CopyEnd) -> Option<AfterCopy> {
        let us = us();
        let copy = Copy { executor: &us, attempt: Attempt::FIRST, since: Sequence(1) };
        copy.follows(record, Sequence(sequence), end, NOW)
    }

    #[test]
    fn what_the_machine_fails_is_run_elsewhere_and_what_the_command_fails_is_not() {
        let record = testing::claimed().record;
        assert!(matches!(follows(&record, 1, &failed(1)), Some(AfterCopy::Finish(_))));
        let Some(AfterCopy::Requeue(next)) = follows(&record, 1, &broken()) else { panic!() };
        assert_eq!((next.attempt, next.so_far.avoid.as_slice()), (Attempt(2), [us()].as_slice()));
    }

    #[test]
    fn what_runs_out_of_memory_is_run_with_twice_as_much() {
        let record = testing::claimed().record;
        let CopyEnd::Outcome(outcome) = failed(137) else { panic!() };
        let end = |most| CopyEnd::OutOfMemory { outcome: outcome.clone(), had: 100, most };
        let Some(AfterCopy::Requeue(next)) = follows(&record, 1, &end(1000)) else { panic!() };
        assert_eq!((next.so_far.memory_bytes, next.so_far.avoid.len()), (Some(200), 0));
        assert!(matches!(follows(&record, 1, &end(100)), Some(AfterCopy::Finish(_))));
    }

    #[test]
    fn a_success_is_the_result_whatever_happened_meanwhile() {
        let record = testing::claimed().record;
        let hedged = record.hedged(Sequence(1), NOW);
        let again = record.requeued(Sequence(1), "lost".to_owned(), Some(us()), true, NOW);
        for found in [hedged, again] {
            assert!(matches!(follows(&found, 2, &failed(0)), Some(AfterCopy::Finish(_))));
        }
        let CopyEnd::Outcome(outcome) = failed(0) else { panic!() };
        assert_eq!(follows(&record.finished(Sequence(1), outcome, NOW), 2, &failed(0)), None);
    }

    #[test]
    fn a_failure_that_is_known_is_not_counted_again() {
        let record = testing::claimed().record;
        // Recorded by this executor in a lost write, or by a scheduler that requeued the action.
        let again = record.requeued(Sequence(1), "lost".to_owned(), Some(us()), true, NOW);
        assert_eq!(follows(&again, 2, &broken()), None);
        assert_eq!(follows(&again, 2, &failed(1)), None);
        let hedged = record.hedged(Sequence(1), NOW);
        let ended = hedged.copy_ended(Sequence(2), "broken".to_owned(), us(), None, NOW);
        assert_eq!(follows(&ended, 3, &broken()), None);
        // The recorded end belongs to an earlier copy on this executor.
        let us = us();
        let copy = Copy { executor: &us, attempt: Attempt::FIRST, since: Sequence(3) };
        assert!(copy.follows(&ended, Sequence(3), &broken(), NOW).is_some());
        // While other copies run, the failure of one is recorded.
        assert!(matches!(follows(&hedged, 2, &failed(1)), Some(AfterCopy::GoOn(_))));
    }
}
