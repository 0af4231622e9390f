//! Writing how a copy of an execution ended: the first result written stands.

use std::time::Duration;

use bus::Written;
use model::{
    Attempt, Claimed, ExecutionOutcome, ExecutionPhase, ExecutionRecord, ExecutorId, Millis, Sequence,
};
use policy::actions::{AfterCopy, CopyEnd, after_copy};
use service::{Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tracing::{debug, warn};

use crate::{Shared, hands::Hand};

const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(200);

/// Writes what follows from the end of the copy behind the record that was claimed, or behind its successor. A success is as
/// good as any other, whatever happened meanwhile. Tries until it is written, or the lease is gone: then it is run elsewhere.
pub(crate) async fn finish(shared: &Shared, claimed: Claimed, hand: &Hand, mut end: CopyEnd) {
    match &mut end {
        CopyEnd::OutOfMemory { most, outcome, .. } => {
            outcome.home = Some(shared.home.clone());
            *most = memory_most(shared).await;
        }
        CopyEnd::Outcome(outcome) => outcome.home = Some(shared.home.clone()),
        CopyEnd::Infrastructure { .. } => {}
    }
    let key = claimed.record.execution.key();
    let copy = Copy { executor: &shared.id, attempt: claimed.record.attempt, since: claimed.sequence };
    let mut last = (claimed.sequence, claimed.record);
    loop {
        let (sequence, record) = &last;
        let Some(after) = copy.follows(record, *sequence, &end, shared.context.bus.now()) else {
            debug!(%key, "the end of this copy changes nothing any more");
            return;
        };
        match shared.context.bus.transition(after.record(), *sequence, PATIENCE).await {
            Ok(Written::Won(_)) => {
                crash_point(Step::ActionResultWritten);
                tell(&after, &end);
                return;
            }
            Ok(Written::Lost(Some(found))) => last = *found,
            Ok(Written::Lost(None)) => {
                debug!(%key, "the action is gone");
                return;
            }
            Err(error) => {
                warn!(%key, error = telemetry::error_chain(&error), "the end of an action is written again");
                tokio::select! {
                    () = hand.stop.cancelled() => return,
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
    }
}

/// One copy of an execution.
#[derive(Debug, Clone, Copy)]
struct Copy<'a> {
    executor: &'a ExecutorId,
    /// Of which attempt it is.
    attempt: Attempt,
    /// The position of the record behind which it was claimed.
    since: Sequence,
}

impl Copy<'_> {
    /// What is to be written behind `record`, the last one, when the copy ended so. `None` when nothing is: there is a result,
    /// or it was no success and does not count any more.
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

    /// Whether someone wrote that it has ended: we ourselves, where the answer was lost, or a scheduler that took us for lost.
    fn is_known(&self, record: &ExecutionRecord, sequence: Sequence) -> bool {
        let ours =
            matches!(&record.phase, ExecutionPhase::CopyEnded { executor, .. } if executor == self.executor);
        ours && sequence > self.since
    }
}

/// Bytes of memory that an action can have at most: what the largest executor of the pool has, as far as the settings allow.
async fn memory_most(shared: &Shared) -> u64 {
    let ours = &shared.pool;
    let known = match shared.context.bus.pool(&ours.name).await {
        Ok(known) => known,
        Err(error) => {
            debug!(error = telemetry::error_chain(&error), "what other executors have is not known");
            None
        }
    };
    let largest = known.map_or(0, |pool| pool.capacity.memory_bytes).max(ours.capacity.memory_bytes);
    match shared.context.settings.action_memory_bytes_max {
        0 => largest,
        most => largest.min(most),
    }
}

fn tell(after: &AfterCopy, end: &CopyEnd) {
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
            warn!(%key, reason, "an action could not be run here");
        }
        (AfterCopy::Requeue(next), _) => {
            debug!(%key, label, memory = next.so_far.memory_bytes, "the action is to be run again");
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

    /// What follows from the end of a copy that was claimed behind the first record.
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
        // Our own, in doubt; or a scheduler's, who gave the action to another.
        let again = record.requeued(Sequence(1), "lost".to_owned(), Some(us()), true, NOW);
        assert_eq!(follows(&again, 2, &broken()), None);
        assert_eq!(follows(&again, 2, &failed(1)), None);
        let hedged = record.hedged(Sequence(1), NOW);
        let ended = hedged.copy_ended(Sequence(2), "broken".to_owned(), us(), None, NOW);
        assert_eq!(follows(&ended, 3, &broken()), None);
        // That of a copy which we had before this one.
        let us = us();
        let copy = Copy { executor: &us, attempt: Attempt::FIRST, since: Sequence(3) };
        assert!(copy.follows(&ended, Sequence(3), &broken(), NOW).is_some());
        // While others run on, one more or less that failed is told.
        assert!(matches!(follows(&hedged, 2, &failed(1)), Some(AfterCopy::GoOn(_))));
    }
}
