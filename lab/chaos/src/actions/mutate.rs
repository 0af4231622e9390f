//! Breaks a good history of actions in one way: exactly one rule must detect it.

use model::{Attempt, BlobDigest, ExecutionPhase, ExecutionRecord, ExecutorId, Sequence, SoFar, Urgency};

use super::{history::ActionHistory, rules::ActionRule};
use crate::Random;

/// A way to break a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionMutation {
    /// An execution never ends.
    DropFinished,
    /// An execution ends twice.
    FinishTwice,
    /// An execution is requeued after its end.
    RequeueAfterFinished,
    /// An execution was never accepted.
    DropAccepted,
    /// An execution was accepted twice.
    AcceptTwice,
    /// An execution changes into another action.
    ChangeAction,
    /// An execution loses its position in the queue.
    ChangePlace,
    /// An attempt is left out.
    SkipAttempt,
    /// An execution has more attempts than the limit.
    TooManyAttempts,
    /// More copies are started than the limit.
    TooManyCopies,
    /// A copy ends that never started.
    EndLastCopy,
    /// An execution is requeued while a copy of it runs.
    RequeueWithCopies,
    /// A copy is missing in the count.
    Miscount,
    /// An execution becomes less urgent.
    RaiseToLess,
    /// An execution that a client received is missing from the log.
    LoseExecution,
    /// A client receives an execution of another action.
    JoinAnother,
    /// A client receives the output of another command.
    AnswerOfAnother,
}

impl ActionMutation {
    /// All ways to break a history.
    pub const ALL: [Self; 17] = [
        Self::DropFinished,
        Self::FinishTwice,
        Self::RequeueAfterFinished,
        Self::DropAccepted,
        Self::AcceptTwice,
        Self::ChangeAction,
        Self::ChangePlace,
        Self::SkipAttempt,
        Self::TooManyAttempts,
        Self::TooManyCopies,
        Self::EndLastCopy,
        Self::RequeueWithCopies,
        Self::Miscount,
        Self::RaiseToLess,
        Self::LoseExecution,
        Self::JoinAnother,
        Self::AnswerOfAnother,
    ];

    /// Returns the rule that this mutation breaks.
    pub fn rule(self) -> ActionRule {
        match self {
            Self::DropFinished => ActionRule::Finished,
            Self::FinishTwice | Self::RequeueAfterFinished => ActionRule::NothingAfterTheEnd,
            Self::DropAccepted | Self::AcceptTwice => ActionRule::AcceptedOnce,
            Self::ChangeAction | Self::ChangePlace => ActionRule::Unchanged,
            Self::SkipAttempt => ActionRule::AttemptsInOrder,
            Self::TooManyAttempts => ActionRule::AttemptsMax,
            Self::TooManyCopies => ActionRule::CopiesMax,
            Self::EndLastCopy => ActionRule::CopyWasThere,
            Self::RequeueWithCopies => ActionRule::NoCopyLeft,
            Self::Miscount => ActionRule::Counted,
            Self::RaiseToLess => ActionRule::MoreUrgent,
            Self::LoseExecution => ActionRule::Known,
            Self::JoinAnother => ActionRule::ItsOwn,
            Self::AnswerOfAnother => ActionRule::RightAnswer,
        }
    }

    /// Returns the history broken at a random place; `None` when it has no suitable place.
    pub fn apply(self, good: &ActionHistory, random: &mut Random) -> Option<ActionHistory> {
        let mut broken = good.clone();
        match self {
            Self::LoseExecution => {
                let key = any_received(&broken, random)?;
                broken.executions.remove(&key);
            }
            Self::JoinAnother => join_another(&mut broken, random)?,
            Self::AnswerOfAnother => {
                let at = random.position(broken.answers.len());
                broken.answers.get_mut(at)?.got = Ok("what another command wrote".to_owned());
            }
            Self::DropFinished
            | Self::FinishTwice
            | Self::RequeueAfterFinished
            | Self::DropAccepted
            | Self::AcceptTwice
            | Self::ChangeAction
            | Self::ChangePlace
            | Self::SkipAttempt
            | Self::TooManyAttempts
            | Self::TooManyCopies
            | Self::EndLastCopy
            | Self::RequeueWithCopies
            | Self::Miscount
            | Self::RaiseToLess => {
                let most = good.hedges_max;
                let keys: Vec<String> = (broken.executions.iter())
                    .filter(|(_, records)| self.fits(records))
                    .map(|(key, _)| key.clone())
                    .collect();
                let records = broken.executions.get_mut(random.pick(&keys)?)?;
                self.break_one(records, most)?;
            }
        }
        Some(broken)
    }

    /// Returns whether the records of an execution can be broken this way.
    fn fits(self, records: &[ExecutionRecord]) -> bool {
        let requeued = || records.iter().any(|it| matches!(it.phase, ExecutionPhase::Requeued { .. }));
        let Some((last, _)) = records.split_last() else { return false };
        match self {
            Self::SkipAttempt => requeued() && last.attempt.0 > 1,
            Self::TooManyAttempts => last.attempt.0 > 1,
            Self::RequeueWithCopies => last.copies() > 1,
            Self::EndLastCopy => last.copies() == 1,
            // Two positions are needed to see a difference.
            Self::ChangePlace => records.len() > 2,
            Self::DropFinished
            | Self::FinishTwice
            | Self::RequeueAfterFinished
            | Self::DropAccepted
            | Self::AcceptTwice
            | Self::ChangeAction
            | Self::TooManyCopies
            | Self::Miscount
            | Self::RaiseToLess
            | Self::LoseExecution
            | Self::JoinAnother
            | Self::AnswerOfAnother => true,
        }
    }

    fn break_one(self, records: &mut Vec<ExecutionRecord>, hedges_max: u16) -> Option<()> {
        let end = records.len().checked_sub(1)?;
        let last = records.last()?.clone();
        match self {
            Self::DropFinished => {
                records.pop();
            }
            Self::FinishTwice => records.push(last),
            Self::RequeueAfterFinished => {
                let reason = "after its end".to_owned();
                let next = last.requeued(last.place, reason, None, false, last.at_ms);
                records.push(next);
            }
            Self::DropAccepted => {
                records.remove(0);
            }
            Self::AcceptTwice => records.insert(0, records.first()?.clone()),
            Self::ChangeAction => {
                records.last_mut()?.execution.action =
                    BlobDigest { size: last.execution.action.size + 1, ..last.execution.action };
            }
            Self::ChangePlace => records.last_mut()?.place = Sequence(last.place.0 + 1),
            Self::SkipAttempt => {
                let from =
                    records.iter().position(|it| matches!(it.phase, ExecutionPhase::Requeued { .. }))?;
                let before = records.get(from.checked_sub(1)?)?.attempt.0;
                // Two more than the previous attempt, which may be the same attempt.
                let more = before + 2 - records.get(from)?.attempt.0;
                for record in records.iter_mut() {
                    record.execution.max_attempts.0 += more;
                }
                for record in records.iter_mut().skip(from) {
                    record.attempt.0 += more;
                }
            }
            Self::TooManyAttempts => {
                for record in records {
                    record.execution.max_attempts = Attempt(last.attempt.0 - 1);
                }
            }
            Self::TooManyCopies => {
                for _ in last.so_far.hedges..=hedges_max {
                    let before = records.get(records.len().checked_sub(2)?)?.clone();
                    let copy = before.hedged(before.place_at(last.place), before.at_ms);
                    records.insert(records.len() - 1, copy);
                }
                recount(records);
            }
            Self::EndLastCopy => {
                let (before, executor) = (records.get(end.checked_sub(1)?)?.clone(), unknown_executor()?);
                let place = before.place_at(last.place);
                let next = before.copy_ended(place, "was not there".to_owned(), executor, None, before.at_ms);
                records.insert(end, next);
                recount(records);
            }
            Self::RequeueWithCopies => {
                let before = records.get(end.checked_sub(1)?)?.clone();
                let place = before.place_at(last.place);
                let next = before.requeued(place, "too early".to_owned(), None, false, before.at_ms);
                records.insert(end, next);
                recount(records);
            }
            Self::Miscount => {
                let counted = &mut records.last_mut()?.so_far.hedges;
                *counted = if *counted == 0 { 1 } else { *counted - 1 };
            }
            Self::RaiseToLess => {
                let before = records.get(end.checked_sub(1)?)?.clone();
                let urgency = before.urgency();
                let less = Urgency { priority: urgency.priority.saturating_add(1), ..urgency };
                records.insert(end, before.raised(before.place_at(last.place), less, before.at_ms));
                recount(records);
            }
            Self::LoseExecution | Self::JoinAnother | Self::AnswerOfAnother => return None,
        }
        Some(())
    }
}

/// Recomputes the count of preceding records in every record, as after an insertion.
fn recount(records: &mut [ExecutionRecord]) {
    let mut before: Option<SoFar> = None;
    for record in records {
        let so_far = &mut record.so_far;
        if let Some(SoFar { hedges, ended, band, priority, .. }) = before {
            match record.phase {
                ExecutionPhase::Requeued { .. } => (so_far.hedges, so_far.ended) = (0, 0),
                ExecutionPhase::Hedged => (so_far.hedges, so_far.ended) = (hedges + 1, ended),
                ExecutionPhase::CopyEnded { .. } => (so_far.hedges, so_far.ended) = (hedges, ended + 1),
                ExecutionPhase::Accepted | ExecutionPhase::Raised | ExecutionPhase::Finished(_) => {
                    (so_far.hedges, so_far.ended) = (hedges, ended);
                }
            }
            if record.phase != ExecutionPhase::Raised {
                (so_far.band, so_far.priority) = (band, priority);
            }
        }
        before = Some(so_far.clone());
    }
}

fn unknown_executor() -> Option<ExecutorId> {
    "executor-unknown".parse().ok()
}

/// Returns a random execution that a client received.
fn any_received(history: &ActionHistory, random: &mut Random) -> Option<String> {
    let received: Vec<&str> = history.answers.iter().flat_map(super::clients::Answer::keys).collect();
    random.pick(&received).map(|key| (*key).to_owned())
}

fn join_another(history: &mut ActionHistory, random: &mut Random) -> Option<()> {
    for _ in 0..1000 {
        let other = history.answers.get(random.position(history.answers.len()))?.clone();
        let answer = random.position(history.answers.len());
        let answer = history.answers.get_mut(answer)?;
        if answer.action != other.action && other.keys().next().is_some() {
            answer.operations.clone_from(&other.operations);
            return Some(());
        }
    }
    None
}
