//! How many more builds fit into the memory of a worker, from what earlier ones needed at most.
//!
//! A build needs most of its memory some time after its start: what is free now says little about what is free then.

use std::collections::{HashMap, VecDeque};

/// Number of builds that ended last, from which the need of an unknown build is estimated.
const RECENT: usize = 16;
/// Maximum number of kinds of builds that are remembered.
const KINDS: usize = 1000;

/// Memory of a running build, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// What it uses now.
    pub now: u64,
    /// What it is expected to use at most; 0 if nothing is known.
    pub expected: u64,
}

/// Memory that builds of this worker needed at most, by kind of build.
#[derive(Debug, Default)]
pub struct MemoryHistory {
    recent: VecDeque<u64>,
    kinds: HashMap<String, u64>,
    /// The kinds by age, the oldest first.
    order: VecDeque<String>,
}

impl MemoryHistory {
    /// Notes what a build needed at most. Of one kind, the mean of the last peak and those before counts.
    pub fn note(&mut self, kind: &str, peak: u64) {
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(peak);
        if let Some(known) = self.kinds.get_mut(kind) {
            *known = known.midpoint(peak);
            return;
        }
        if self.order.len() >= KINDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.kinds.remove(&oldest);
        }
        self.order.push_back(kind.to_owned());
        self.kinds.insert(kind.to_owned(), peak);
    }

    /// Expected peak of a build of this kind.
    pub fn of(&self, kind: &str) -> u64 {
        self.kinds.get(kind).copied().unwrap_or_else(|| self.typical())
    }

    /// Mean peak of the builds that ended last; 0 before the first one.
    pub fn typical(&self) -> u64 {
        let count = u64::try_from(self.recent.len()).unwrap_or(u64::MAX);
        let sum: u64 = self.recent.iter().fold(0, |sum, peak| sum.saturating_add(*peak));
        sum.checked_div(count).unwrap_or_default()
    }
}

/// Memory that is free once all running builds have grown as expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryAhead {
    /// Bytes by which the running builds are expected to grow.
    pub growth: u64,
    /// Bytes that are free then, without what must stay free.
    pub left: u64,
}

impl MemoryAhead {
    /// For a machine with `left` bytes available now, of which `reserve` must stay free.
    pub fn new(left: u64, reserve: u64, running: impl IntoIterator<Item = MemoryUse>) -> Self {
        let growth = running
            .into_iter()
            .fold(0_u64, |sum, build| sum.saturating_add(build.expected.saturating_sub(build.now)));
        Self { growth, left: left.saturating_sub(reserve).saturating_sub(growth) }
    }

    /// Number of builds that fit, if each needs `each` bytes; without an estimate, the window alone decides.
    pub fn room(self, each: u64) -> u32 {
        self.left.checked_div(each).map_or(u32::MAX, |room| u32::try_from(room).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GB: u64 = 1 << 30;

    #[test]
    fn builds_that_have_not_grown_yet_count_as_grown() {
        let young = MemoryUse { now: GB / 8, expected: GB };
        let grown = MemoryUse { now: 2 * GB, expected: GB };
        let ahead = MemoryAhead::new(3 * GB, GB / 2, [young, grown]);
        assert_eq!(ahead, MemoryAhead { growth: GB / 8 * 7, left: GB / 8 * 13 });
        assert_eq!((ahead.room(GB), ahead.room(2 * GB), ahead.room(0)), (1, 0, u32::MAX));
    }

    #[test]
    fn a_known_kind_counts_by_itself_and_an_unknown_one_as_the_mean() {
        let mut history = MemoryHistory::default();
        assert_eq!(history.of("large"), 0);
        history.note("large", 8 * GB);
        history.note("small", GB);
        history.note("small", 3 * GB);
        assert_eq!((history.of("large"), history.of("small"), history.of("other")), (8 * GB, 2 * GB, 4 * GB));
    }

    #[test]
    fn the_oldest_kinds_are_forgotten() {
        let mut history = MemoryHistory::default();
        (0..=KINDS).for_each(|kind| history.note(&kind.to_string(), 7));
        history.note("last", 9);
        assert_eq!((history.kinds.len(), history.order.len()), (KINDS, KINDS));
        assert!(!history.kinds.contains_key("0") && history.kinds.contains_key("last"));
    }

    proptest! {
        #[test]
        fn what_is_admitted_fits_if_it_grows_as_expected(
            left in 0..64 * GB, reserve in 0..4 * GB, each in 1..8 * GB,
            running in prop::collection::vec((0..8 * GB, 0..8 * GB), 0..16),
        ) {
            let running: Vec<MemoryUse> =
                running.into_iter().map(|(now, expected)| MemoryUse { now, expected }).collect();
            let room = u64::from(MemoryAhead::new(left, reserve, running.iter().copied()).room(each));
            let growth: u64 = running.iter().map(|build| build.expected.saturating_sub(build.now)).sum();
            prop_assert!(room == 0 || growth + room * each + reserve <= left);
        }
    }
}
