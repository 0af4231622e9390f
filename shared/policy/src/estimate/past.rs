//! Durations of the last pieces of work of one key.

use invariant::impossible;

/// Number of durations kept: the thesis found it to be enough (section 3.4.1 of the thesis).
pub(super) const KEPT: usize = 20;

/// The last durations of a key, in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Past {
    /// Ring buffer: the oldest is first until it is full, and at `next` from then on.
    kept: [u32; KEPT],
    len: usize,
    next: usize,
}

impl Past {
    /// The past of a key without data.
    pub(super) const NONE: &'static Self = &Self { kept: [0; KEPT], len: 0, next: 0 };

    pub(super) fn push(&mut self, ms: u32) {
        if let Some(place) = self.kept.get_mut(self.next) {
            *place = ms;
        } else {
            impossible!("duration {} of {KEPT} is the next", self.next);
        }
        self.next = (self.next + 1) % KEPT;
        self.len = (self.len + 1).min(KEPT);
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The last `most` durations, from the latest.
    pub(super) fn latest(&self, most: usize) -> impl Iterator<Item = u32> {
        (1..=self.len().min(most))
            .filter_map(move |back| self.kept.get((self.next + KEPT - back) % KEPT))
            .copied()
    }

    /// The median of the last `most`; `None` without data.
    pub(super) fn median(&self, most: usize) -> Option<u64> {
        median(self.latest(most))
    }

    /// The median of those below `limit_ms`, if there are at least `least` of them.
    pub(super) fn median_below(&self, limit_ms: u64, least: usize) -> Option<u64> {
        let below = || self.latest(KEPT).filter(|ms| u64::from(*ms) < limit_ms);
        if below().count() < least { None } else { median(below()) }
    }
}

/// The middle one of at most [`KEPT`] numbers, or the mean of the two in the middle.
pub(super) fn median(numbers: impl Iterator<Item = u32>) -> Option<u64> {
    let mut sorted = [u32::MAX; KEPT];
    let mut len = 0;
    for (place, number) in sorted.iter_mut().zip(numbers) {
        *place = number;
        len += 1;
    }
    sorted.sort_unstable();
    let value_at = |index: usize| sorted.get(index).copied().map(u64::from);
    let (low, high) = (value_at(usize::checked_sub(len, 1)? / 2)?, value_at(len / 2)?);
    Some(low.midpoint(high))
}

impl Past {
    /// The middle of the shortest range, by ratio, that holds half of the durations: near the most usual duration if
    /// there are several usual ones.
    pub(super) fn densest(&self) -> Option<u64> {
        let mut sorted = [u32::MAX; KEPT];
        for (place, ms) in sorted.iter_mut().zip(self.latest(KEPT)) {
            *place = ms.max(1);
        }
        sorted.sort_unstable();
        let known = sorted.get(..self.len())?;
        let half = known.len() / 2 + 1;
        let proportion = |range: &&[u32]| {
            if let (Some(first), Some(last)) = (range.first(), range.last()) {
                return f64::from(*last) / f64::from(*first);
            }
            impossible!("half of {} durations is none", known.len());
            f64::INFINITY
        };
        let densest = known.windows(half).min_by(|a, b| proportion(a).total_cmp(&proportion(b)))?;
        median(densest.iter().copied())
    }
}
