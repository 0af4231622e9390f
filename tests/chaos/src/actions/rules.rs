//! What must hold of the history of actions.

use std::collections::BTreeMap;

use model::{Attempt, BlobDigest, ExecutionPhase, ExecutionRecord};

use super::history::ActionHistory;

/// The promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ActionRule {
    /// Every execution has a result.
    Finished,
    /// It has one, and nothing follows it.
    NothingAfterTheEnd,
    /// The first record is its acceptance, and there is no other.
    AcceptedOnce,
    /// It stays what was accepted, in its place.
    Unchanged,
    /// An attempt follows the one before when it is queued again, and at no other time.
    AttemptsInOrder,
    /// There are no more attempts than it may have.
    AttemptsMax,
    /// There are no more copies than may be started.
    CopiesMax,
    /// A copy that ended is one that there was, and not the last: of the last one the end is another record.
    CopyWasThere,
    /// It is queued again when none of its copies is left.
    NoCopyLeft,
    /// A record counts what was written before it.
    Counted,
    /// A raised priority is a more urgent one.
    MoreUrgent,
    /// An operation that a client was told of is an execution in the log,
    Known,
    /// and one of the action that it asked for.
    ItsOwn,
    /// Every client gets what its command wrote.
    RightAnswer,
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Broken {
    /// Which.
    pub rule: ActionRule,
    /// Of what, and how.
    pub what: String,
}

impl ActionHistory {
    /// Every promise that was broken.
    pub fn check(&self) -> Vec<Broken> {
        let mut broken = Vec::new();
        let mut actions: BTreeMap<&str, &BlobDigest> = BTreeMap::new();
        for (key, records) in &self.executions {
            let rules = check_one(records, self.hedges_max);
            let told = || format!("{key}: {:?}", words(records));
            broken.extend(rules.into_iter().map(|rule| Broken { rule, what: told() }));
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

/// What was counted up to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count {
    attempt: Attempt,
    priority: i32,
    hedges: u16,
    ended: u16,
}

impl Count {
    fn of(record: &ExecutionRecord) -> Self {
        let so_far = &record.so_far;
        Self {
            attempt: record.attempt,
            priority: record.priority(),
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
    // What comes after the end is wrong whatever it is.
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

/// What is wrong with a record of this phase that counts `now`, behind one that counts `before`.
fn step(before: Count, now: Count, phase: &ExecutionPhase, hedges_max: u16) -> Vec<ActionRule> {
    let mut broken = Vec::new();
    let mut wanted = Count { attempt: now.attempt, ..before };
    let mut attempts = vec![before.attempt];
    match phase {
        ExecutionPhase::Requeued { .. } => {
            // One that was given back without a run is the same attempt.
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
            if now.priority >= before.priority {
                broken.push(ActionRule::MoreUrgent);
            }
            wanted.priority = now.priority;
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

/// The records in short.
fn words(records: &[ExecutionRecord]) -> Vec<String> {
    let one = |record: &ExecutionRecord| {
        let word = match &record.phase {
            ExecutionPhase::Accepted => "accepted".to_owned(),
            ExecutionPhase::Requeued { reason, .. } => format!("requeued ({reason})"),
            ExecutionPhase::Hedged => "hedged".to_owned(),
            ExecutionPhase::CopyEnded { reason, .. } => format!("copy ended ({reason})"),
            ExecutionPhase::Raised => format!("raised to {}", record.priority()),
            ExecutionPhase::Finished(outcome) => format!("finished with {}", outcome.code),
        };
        let Count { attempt, hedges, ended, .. } = Count::of(record);
        format!("{word}, attempt {attempt}, {hedges} hedged, {ended} ended")
    };
    records.iter().map(one).collect()
}
