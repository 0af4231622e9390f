//! Strict priority inside a group (invariant 7).

use std::collections::BTreeMap;

use model::{Attempt, BuildKey, Group, Phase, Sequence};

use super::Counts;
use crate::{Finding, History, Rule, history::clock};

/// Maximum percentage of starts that may be excused.
const EXCUSED_PERCENT_MAX: usize = 2;

/// One attempt of a build, from its ENQUEUED to its STARTED.
struct Wait<'a> {
    key: &'a BuildKey,
    attempt: Attempt,
    rank: u8,
    /// Position of the attempt's ENQUEUED.
    enqueued: Sequence,
    /// Position of the build's first ENQUEUED, which is its queue position.
    place: Sequence,
    /// Time of the pick, and the stream position that the dispatcher had read.
    picked: Option<(u64, Sequence)>,
}

/// Checks that no build is picked while a more urgent one of its group waits, as far as the dispatcher had read.
pub(super) fn check(history: &History) -> (Vec<Finding>, Vec<Finding>, Counts) {
    let groups = waits(history);
    let (mut findings, mut excused, mut counts, mut starts) = (Vec::new(), Vec::new(), Counts::default(), 0);
    for waits in groups.values() {
        for late in waits {
            let Some((at, read)) = late.picked else { continue };
            starts += 1;
            // Builds that were never picked count as picked later.
            let passed = |other: &&Wait| {
                other.enqueued <= read
                    && other.key != late.key
                    && other.picked.is_none_or(|(when, _)| when > at)
            };
            let older = |other: &&Wait| other.rank == late.rank && other.place < late.place;
            if waits.iter().filter(passed).any(|other| older(&other)) {
                counts.out_of_turn += 1;
            }
            if waits.iter().filter(passed).any(|other| other.rank > late.rank) {
                counts.contested += 1;
            }
            let Some(urgent) = waits.iter().filter(passed).find(|other| other.rank < late.rank) else {
                continue;
            };
            if history.kills.iter().any(|kill| kill.excuses(at)) {
                counts.excused += 1;
                excused.push(inversion(late, urgent, at));
            } else {
                counts.unexcused += 1;
                findings.push(inversion(late, urgent, at));
            }
        }
    }
    if counts.excused * 100 > starts * EXCUSED_PERCENT_MAX {
        let text = format!(
            "{} of {starts} starts are inversions excused by kills, which is too many",
            counts.excused
        );
        findings.push(Finding { rule: Rule::Priority, keys: Vec::new(), text });
    }
    (findings, excused, counts)
}

fn inversion(late: &Wait, urgent: &Wait, at: u64) -> Finding {
    let then = urgent.picked.map_or_else(|| "never".to_owned(), |(when, _)| format!("at {}", clock(when)));
    let text = format!(
        "attempt {} was picked at {} while attempt {} of the second, more urgent, waited, which was picked {then}",
        late.attempt,
        clock(at),
        urgent.attempt
    );
    Finding { rule: Rule::Priority, keys: vec![late.key.clone(), urgent.key.clone()], text }
}

/// Returns every queued attempt, by group. An attempt that ended while queued delayed no other build.
fn waits(history: &History) -> BTreeMap<&Group, Vec<Wait<'_>>> {
    let mut groups: BTreeMap<&Group, Vec<Wait<'_>>> = BTreeMap::new();
    for (key, events) in history.by_build() {
        let mut queued = BTreeMap::new();
        let mut picked = BTreeMap::new();
        let mut ended = None;
        for (at, record) in events.iter().filter_map(|event| Some((event.sequence, event.record()?))) {
            match &record.phase {
                Phase::Enqueued => {
                    queued.entry(record.attempt).or_insert((at, record.build.priority.rank()));
                }
                Phase::InProgress { invocation } => {
                    let pick = (invocation.dispatched_at_us, invocation.dispatched_at_sequence);
                    picked.entry(record.attempt).or_insert(pick);
                }
                Phase::Finished { .. } => ended = Some(record.attempt),
            }
        }
        let Some(place) = queued.values().map(|(at, _)| *at).min() else { continue };
        let waits = queued.into_iter().filter_map(|(attempt, (enqueued, rank))| {
            let picked = picked.get(&attempt).copied();
            let waited = picked.is_some() || ended != Some(attempt);
            waited.then_some(Wait { key, attempt, rank, enqueued, place, picked })
        });
        groups.entry(&key.group).or_default().extend(waits);
    }
    groups
}
