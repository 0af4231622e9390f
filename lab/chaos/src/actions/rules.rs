//! Rules that the history of actions must satisfy.

use std::collections::BTreeMap;

use model::{Attempt, BlobDigest, ExecutionPhase, ExecutionRecord, Urgency};

use super::history::ActionHistory;

/// The promises of the farm about actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ActionRule {
    /// Every execution has a result.
    Finished,
    /// An execution has only one result, and no record follows it.
    NothingAfterTheEnd,
    /// The first record is the acceptance, and there is no other acceptance.
    AcceptedOnce,
    /// The action and its queue position never change.
    Unchanged,
    /// The attempt number increases by one at a requeue, and at no other time.
    AttemptsInOrder,
    /// The number of attempts is within the limit.
    AttemptsMax,
    /// The number of copies is within the limit.
    CopiesMax,
    /// A copy that ended had started, and was not the last one: the end of the last copy is another record.
    CopyWasThere,
    /// An execution is requeued only when none of its copies is left.
    NoCopyLeft,
    /// A record counts all records before it.
    Counted,
    /// A raised execution is more urgent than before.
    MoreUrgent,
    /// An operation that a client received is an execution in the log.
    Known,
    /// An operation that a client received is one of the requested action.
    ItsOwn,
    /// Every client receives the output of its command.
    RightAnswer,
}

/// A broken promise and its evidence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Broken {
    /// The rule that is broken.
    pub rule: ActionRule,
    /// The execution or client, and how the rule is broken.
    pub what: String,
}

impl ActionHistory {
    /// Returns every broken promise.
    pub fn check(&self) -> Vec<Broken> {
        let mut broken = Vec::new();
        let mut actions: BTreeMap<&str, &BlobDigest> = BTreeMap::new();
        for (key, records) in &self.executions {
            let rules = check_one(records, self.hedges_max);
            let described = || format!("{key}: {:?}", words(records));
            broken.extend(rules.into_iter().map(|rule| Broken { rule, what: described() }));
            actions.extend(records.first().map(|first| (key.as_str(), &first.execution.action)));
        }
        for answer in &self.answers {
            for key in answer.keys() {
                let what = format!("{}: {key}", answer.wanted);
                match actions.get(key) {
                    None => broken.push(Broken { rule: ActionRule::Known, what }),
                    Some(action) if **action != answer.action => {
                        broken.push(Broken { rule: ActionRule::ItsOwn, what });
                    }
                    Some(_) => {}
                }
            }
            if answer.got.as_ref() != Ok(&answer.wanted) {
                let what = format!("{}: {:?}", answer.wanted, answer.got);
                broken.push(Broken { rule: ActionRule::RightAnswer, what });
            }
        }
        broken
    }
}

/// Counters of an execution up to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count {
    attempt: Attempt,
    urgency: Urgency,
    hedges: u16,
    ended: u16,
}

impl Count {
    fn of(record: &ExecutionRecord) -> Self {
        let so_far = &record.so_far;
        Self {
            attempt: record.attempt,
            urgency: record.urgency(),
            hedges: so_far.hedges,
            ended: so_far.ended,
        }
    }

    fn copies(self) -> u16 {
        self.hedges.saturating_add(1).saturating_sub(self.ended)
    }
}

fn check_one(records: &[ExecutionRecord], hedges_max: u16) -> Vec<ActionRule> {
    let mut broken = Vec::new();
    let end = records.iter().position(|record| record.outcome().is_some());
    match end {
        None => broken.push(ActionRule::Finished),
        Some(at) if at + 1 != records.len() => broken.push(ActionRule::NothingAfterTheEnd),
        Some(_) => {}
    }
    // Records after the end break a rule whatever they are.
    let records = records.get(..end.map_or(records.len(), |at| at + 1)).unwrap_or_default();
    let Some(first) = records.first() else { return broken };
    let accepted = records.iter().filter(|record| record.phase == ExecutionPhase::Accepted).count();
    if accepted != 1 || first.phase != ExecutionPhase::Accepted {
        broken.push(ActionRule::AcceptedOnce);
    }
    let places: Vec<_> = records.iter().filter(|it| it.phase != ExecutionPhase::Accepted).collect();
    let same_place = places.windows(2).all(|pair| pair.iter().all(|it| it.place.0 > 0) && one_place(pair));
    if !same_place || records.iter().any(|record| record.execution != first.execution) {
        broken.push(ActionRule::Unchanged);
    }
    if records.iter().any(|record| record.attempt > record.execution.max_attempts) {
        broken.push(ActionRule::AttemptsMax);
    }
    let mut before = Count::of(first);
    for record in records.iter().skip(1) {
        let now = Count::of(record);
        broken.extend(step(before, now, &record.phase, hedges_max));
        before = now;
    }
    broken.sort();
    broken.dedup();
    broken
}

fn one_place(pair: &[&ExecutionRecord]) -> bool {
    matches!(pair, [one, other] if one.place == other.place)
}

/// Returns the rules that a record of this phase breaks if it counts `now` and its predecessor counts `before`.
fn step(before: Count, now: Count, phase: &ExecutionPhase, hedges_max: u16) -> Vec<ActionRule> {
    let mut broken = Vec::new();
    let mut wanted = Count { attempt: now.attempt, ..before };
    let mut attempts = vec![before.attempt];
    match phase {
        ExecutionPhase::Requeued { .. } => {
            // A requeue without a run keeps the attempt number.
            attempts.push(before.attempt.next());
            if before.copies() > 1 {
                broken.push(ActionRule::NoCopyLeft);
            }
            (wanted.hedges, wanted.ended) = (0, 0);
        }
        ExecutionPhase::Hedged => {
            wanted.hedges = before.hedges.saturating_add(1);
            if wanted.hedges > hedges_max {
                broken.push(ActionRule::CopiesMax);
            }
        }
        ExecutionPhase::CopyEnded { .. } => {
            if before.copies() <= 1 {
                broken.push(ActionRule::CopyWasThere);
            }
            wanted.ended = before.ended.saturating_add(1);
        }
        ExecutionPhase::Raised => {
            if now.urgency >= before.urgency {
                broken.push(ActionRule::MoreUrgent);
            }
            wanted.urgency = now.urgency;
        }
        ExecutionPhase::Accepted | ExecutionPhase::Finished(_) => {}
    }
    if !attempts.contains(&now.attempt) {
        broken.push(ActionRule::AttemptsInOrder);
    }
    if now != wanted {
        broken.push(ActionRule::Counted);
    }
    broken
}

/// Describes the records briefly.
fn words(records: &[ExecutionRecord]) -> Vec<String> {
    let one = |record: &ExecutionRecord| {
        let word = match &record.phase {
            ExecutionPhase::Accepted => "accepted".to_owned(),
            ExecutionPhase::Requeued { reason, .. } => format!("requeued ({reason})"),
            ExecutionPhase::Hedged => "hedged".to_owned(),
            ExecutionPhase::CopyEnded { reason, .. } => format!("copy ended ({reason})"),
            ExecutionPhase::Raised => format!("raised to {}", record.urgency()),
            ExecutionPhase::Finished(outcome) => format!("finished with {}", outcome.code),
        };
        let Count { attempt, hedges, ended, .. } = Count::of(record);
        format!("{word}, attempt {attempt}, {hedges} hedged, {ended} ended")
    };
    records.iter().map(one).collect()
}
