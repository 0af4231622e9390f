//! The multi-level queue with shares of processing time that section 3.5.2 of the thesis proposes, without preemption.
//!
//! Work has a level by its expected run time. The levels take turns such that each gets its share of the processing time
//! while it has work. The thesis keeps a history of what was dispatched; here each level has a start tag (start-time fair
//! queueing), which gives the same proportions without a length of the history to choose.

/// Expected run times in milliseconds at which the next level begins.
const LEVELS_MS: [u64; 3] = [1_000, 10_000, 100_000];
/// Share of the processing time of each level, from the shortest work on, in proportion to their sum.
const SHARES: [u64; LEVELS] = [8, 4, 2, 1];
const LEVELS: usize = 4;
/// Multiple of all shares, so that a charge is a whole number.
const UNIT: u64 = 8;

/// The level of work with this expected run time; 0 is the shortest.
pub fn level(estimate_ms: u64) -> usize {
    LEVELS_MS.iter().filter(|boundary| **boundary <= estimate_ms).count()
}

/// By how much work advances the tag of its level: its length in relation to the share of the level.
pub fn charge(level: usize, length: u64) -> u64 {
    let share = SHARES.get(level).copied().unwrap_or(1);
    length.saturating_mul(UNIT) / share
}

/// The state of the queue of a group: start tags of its levels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Levels {
    /// Tag of the work that started last.
    virtual_time: u64,
    /// Tag of the next work of each level.
    next: [u64; LEVELS],
}

impl Levels {
    /// The tag of work that begins to wait; lower tags start first, and equal ones in the order of arrival.
    pub fn wait(&mut self, estimate_ms: u64) -> u64 {
        let level = level(estimate_ms);
        let virtual_time = self.virtual_time;
        let Some(next) = self.next.get_mut(level) else { return virtual_time };
        let tag = virtual_time.max(*next);
        *next = tag.saturating_add(charge(level, estimate_ms.max(1)));
        tag
    }

    /// Notes that waiting work with this tag starts.
    pub fn start(&mut self, tag: u64) {
        self.virtual_time = self.virtual_time.max(tag);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn levels_are_decades_of_the_expected_time() {
        assert_eq!([0, 999, 1_000, 9_999, 10_000, 100_000, u64::MAX].map(level), [0, 0, 1, 1, 2, 3, 3]);
    }

    /// Work of two lengths always waits: the part of the processing time that each gets.
    fn part_of_first(lengths: [u64; 2]) -> f64 {
        let mut levels = Levels::default();
        let mut waiting: Vec<(u64, u64)> = Vec::new();
        let mut time = [0_u64; 2];
        let mut number = 0;
        for _ in 0..4000 {
            for length in lengths {
                if !waiting.iter().any(|(_, of)| lengths[usize::try_from(of % 2).unwrap()] == length) {
                    let kind = lengths.iter().position(|it| *it == length).unwrap() as u64;
                    waiting.push((levels.wait(length), 2 * number + kind));
                    number += 1;
                }
            }
            waiting.sort_unstable();
            let (tag, of) = waiting.remove(0);
            levels.start(tag);
            let kind = usize::try_from(of % 2).unwrap();
            time[kind] += lengths[kind];
        }
        time[0] as f64 / (time[0] + time[1]) as f64
    }

    #[test]
    fn each_level_gets_its_share_of_the_processing_time() {
        for (lengths, share) in
            [([500, 5_000], 8.0 / 12.0), ([500, 50_000], 8.0 / 10.0), ([5_000, 50_000], 4.0 / 6.0)]
        {
            let part = part_of_first(lengths);
            assert!((part - share).abs() < 0.05, "{lengths:?}: {part} instead of {share}");
        }
    }

    proptest! {
        #[test]
        fn no_work_waits_forever(estimates in prop::collection::vec(0_u64..1_000_000, 1..50)) {
            let mut levels = Levels::default();
            let long = levels.wait(500_000);
            // However much shorter work arrives later, its tags pass that of the long work.
            let mut last = 0;
            for estimate in estimates.iter().cycle().take(5000) {
                last = levels.wait(*estimate);
                levels.start(last);
            }
            prop_assert!(last >= long);
        }
    }
}
