//! What builds wait for, for their traces. Each dispatcher knows what it saw, and the one that picks a build exports it.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, SystemTime},
};

use index::{Heads, WaitingBuild};
use model::{BuildId, Sequence};
use telemetry::spans;
use trace::{Change, WaitsFor};

/// Maximum number of builds of which waits are known.
const BUILDS_MAX: usize = 10_000;
/// Maximum number of changes known of a build, and of the farm.
const CHANGES_MAX: usize = 32;
/// With too many builds, those are forgotten that were not seen for this long: other dispatchers picked them.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);

/// Contains nothing if this process does not trace.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    builds: HashMap<BuildId, Noted>,
    /// Times from which on no workspace was idle, although builds waited.
    exhausted: VecDeque<SystemTime>,
    is_exhausted: bool,
    /// When the heads were read.
    now: Option<SystemTime>,
    /// When builds were forgotten.
    cleaned: Option<SystemTime>,
}

#[derive(Debug, Default)]
struct Noted {
    /// Position since which the build waits; a requeue changes it.
    sequence: Sequence,
    changes: VecDeque<Change>,
    seen: Option<SystemTime>,
}

impl Waits {
    /// Begins to note what the builds in these heads wait for.
    pub(crate) fn look(&mut self, now: SystemTime, heads: &Heads) {
        if !spans::trace_enabled() {
            return;
        }
        self.begin(now, heads.waiting_groups > 0 && heads.all_idle == 0);
    }

    fn begin(&mut self, now: SystemTime, is_exhausted: bool) {
        self.now = Some(now);
        if is_exhausted && !self.is_exhausted {
            push(&mut self.exhausted, now);
        }
        self.is_exhausted = is_exhausted;
    }

    /// Notes what a build waits for now; replaces what was noted since the heads were read.
    pub(crate) fn note(&mut self, build: &WaitingBuild, waits_for: WaitsFor) {
        let Some(now) = self.now else { return };
        if !self.builds.contains_key(&build.id) && !self.has_room(now) {
            return;
        }
        let noted = self.builds.entry(build.id).or_default();
        if noted.sequence != build.sequence {
            *noted = Noted { sequence: build.sequence, ..Noted::default() };
        }
        noted.seen = Some(now);
        noted.changes.pop_back_if(|(at, _)| *at == now);
        // After the farm was exhausted, the same reason begins once more.
        let exhausted = self.exhausted.back();
        let is_same =
            |(at, last): &Change| *last == waits_for && exhausted.is_none_or(|exhausted| exhausted < at);
        if !noted.changes.back().is_some_and(is_same) {
            push(&mut noted.changes, (now, waits_for));
        }
    }

    fn has_room(&mut self, now: SystemTime) -> bool {
        let is_old = |at: Option<SystemTime>| at.is_none_or(|at| at + FORGOTTEN_AFTER <= now);
        if self.builds.len() >= BUILDS_MAX && is_old(self.cleaned) {
            self.cleaned = Some(now);
            self.builds.retain(|_, noted| !is_old(noted.seen));
        }
        self.builds.len() < BUILDS_MAX
    }

    /// What a build waited for that is picked, sorted by time. It stays noted, because its worker may refuse it.
    pub(crate) fn changes_of(&self, id: BuildId, sequence: Sequence) -> Vec<Change> {
        let noted = self.builds.get(&id).filter(|noted| noted.sequence == sequence);
        let own = noted.map(|noted| noted.changes.iter().copied()).into_iter().flatten();
        let farm = self.exhausted.iter().map(|at| (*at, WaitsFor::Workspace));
        let mut changes: Vec<Change> = own.chain(farm).collect();
        changes.sort_by_key(|(at, _)| *at);
        changes
    }
}

fn push<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() >= CHANGES_MAX {
        list.pop_front();
    }
    list.push_back(item);
}

#[cfg(test)]
mod tests {
    use model::{Priority, Sequence};

    use super::*;

    fn build() -> WaitingBuild {
        let traits = index::Traits::default();
        WaitingBuild {
            id: BuildId::generate(),
            sequence: Sequence(1),
            priority: Priority::Interactive,
            traits,
        }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_build_waits_for_what_was_noted_last() {
        let (mut waits, one, other) = (Waits::default(), build(), build());
        waits.note(&one, WaitsFor::Quota);
        assert!(waits.changes_of(one.id, one.sequence).is_empty(), "nothing is noted without a trace");
        for (second, is_exhausted, noted) in [
            (1, false, vec![WaitsFor::Worker, WaitsFor::Quota]),
            (2, false, vec![WaitsFor::Quota]),
            (3, true, vec![]),
            (4, true, vec![]),
            (5, false, vec![WaitsFor::Quota]),
            (6, false, vec![WaitsFor::Quota]),
        ] {
            waits.begin(at(second), is_exhausted);
            for waits_for in noted {
                waits.note(&one, waits_for);
            }
        }
        let wanted = [(at(1), WaitsFor::Quota), (at(3), WaitsFor::Workspace), (at(5), WaitsFor::Quota)];
        assert_eq!(waits.changes_of(one.id, one.sequence), wanted);
        assert_eq!(waits.changes_of(other.id, other.sequence), [(at(3), WaitsFor::Workspace)]);
    }

    #[test]
    fn a_requeued_build_waits_for_something_new() {
        let mut waits = Waits::default();
        let first = build();
        let again = WaitingBuild { sequence: Sequence(5), ..first.clone() };
        waits.begin(at(1), false);
        waits.note(&first, WaitsFor::Quota);
        assert_eq!(waits.changes_of(first.id, first.sequence), [(at(1), WaitsFor::Quota)]);
        assert!(waits.changes_of(again.id, again.sequence).is_empty());
        waits.begin(at(2), false);
        waits.note(&again, WaitsFor::Quota);
        assert_eq!(waits.changes_of(again.id, again.sequence), [(at(2), WaitsFor::Quota)]);
    }

    #[test]
    fn builds_that_are_not_seen_for_long_are_forgotten_if_there_are_too_many() {
        let mut waits = Waits::default();
        waits.begin(at(1), false);
        for _ in 0..BUILDS_MAX {
            waits.note(&build(), WaitsFor::Quota);
        }
        let late = build();
        waits.note(&late, WaitsFor::Quota);
        assert_eq!(waits.builds.len(), BUILDS_MAX);
        assert!(waits.changes_of(late.id, late.sequence).is_empty());
        waits.begin(at(1) + FORGOTTEN_AFTER * 2, false);
        waits.note(&late, WaitsFor::Quota);
        assert_eq!(waits.builds.len(), 1);
    }
}
