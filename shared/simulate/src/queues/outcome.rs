//! What became of the jobs of a stream: how late they started (section 3.6.4 of the thesis), and when the last one ended.

use super::{
    engine::Start,
    stream::{Job, Stream},
};

/// Parts of a stream by order of arrival, of equal size, for which lateness is told.
pub(crate) const WINDOWS: usize = 20;
/// Bins of relative waits: see [`bin`].
pub(crate) const BINS: usize = 24;
/// Bins for each factor of ten.
const BINS_PER_DECADE: f64 = 4.0;
/// Longer jobs are judged by their relative wait. Milliseconds.
const SHORT_MS: u64 = 5_000;

/// How late a job started: for one of up to 5 s, by its wait (2, 15, 45 s); for a longer one, by its wait relative to its
/// duration (0.4, 3, 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lateness {
    /// Nobody minds.
    OnTime,
    /// It is noticed.
    Delayed,
    /// It is a nuisance.
    Late,
    /// Nobody waits for it any more.
    ExtremelyLate,
}

impl Lateness {
    /// All of them, best first.
    pub const ALL: [Self; 4] = [Self::OnTime, Self::Delayed, Self::Late, Self::ExtremelyLate];
}

/// What became of a stream.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QueueOutcome {
    /// Jobs.
    pub jobs: u64,
    /// How many were how late, in the order of [`Lateness::ALL`].
    pub classes: [u64; 4],
    /// The same for each twentieth of the stream.
    pub windows: Vec<[u64; 4]>,
    /// Wait relative to duration: the 50th, 95th and 99th percentile, between neighbours in proportion.
    pub relative_wait: [f64; 3],
    /// Jobs by relative wait, in bins that grow by powers.
    pub wait_bins: Vec<u64>,
    /// When the last job ended, milliseconds since the beginning.
    pub makespan_ms: u64,
}

/// How late a job of `duration_ms` is that waited for `wait_ms`.
pub fn lateness(duration_ms: u64, wait_ms: u64) -> Lateness {
    let limits = if duration_ms > SHORT_MS {
        // Compared as whole numbers: 0.4, 3 and 9 times the duration.
        let tenths = [4, 30, 90];
        tenths.map(|tenths| u128::from(wait_ms) * 10 < u128::from(duration_ms) * tenths)
    } else {
        [2_000, 15_000, 45_000].map(|limit| wait_ms < limit)
    };
    match limits {
        [true, _, _] => Lateness::OnTime,
        [_, true, _] => Lateness::Delayed,
        [_, _, true] => Lateness::Late,
        [false, false, false] => Lateness::ExtremelyLate,
    }
}

/// What became of `stream`, whose jobs started so.
pub fn outcome(stream: &Stream, starts: &[Start]) -> QueueOutcome {
    let mut outcome = QueueOutcome {
        jobs: stream.jobs.len() as u64,
        windows: vec![[0; 4]; WINDOWS],
        wait_bins: vec![0; BINS],
        ..QueueOutcome::default()
    };
    let mut relative = Vec::with_capacity(stream.jobs.len());
    for (number, (job, start)) in stream.jobs.iter().zip(starts).enumerate() {
        let wait = start.start_ms.saturating_sub(job.arrival_ms);
        let class = lateness(job.duration_ms, wait) as usize;
        let window = number * WINDOWS / stream.jobs.len();
        for counts in [Some(&mut outcome.classes), outcome.windows.get_mut(window)].into_iter().flatten() {
            if let Some(count) = counts.get_mut(class) {
                *count += 1;
            }
        }
        let waited = relative_wait(job, wait);
        if let Some(count) = outcome.wait_bins.get_mut(bin(waited)) {
            *count += 1;
        }
        relative.push(waited);
        outcome.makespan_ms = outcome.makespan_ms.max(start.start_ms.saturating_add(job.duration_ms));
    }
    relative.sort_unstable_by(f64::total_cmp);
    outcome.relative_wait = [0.5, 0.95, 0.99].map(|share| percentile(&relative, share));
    outcome
}

/// A wait relative to the duration. Jobs of no duration count as of a millisecond.
fn relative_wait(job: &Job, wait_ms: u64) -> f64 {
    wait_ms as f64 / job.duration_ms.max(1) as f64
}

/// The value below which `share` of the sorted `values` lie; between two in proportion.
fn percentile(values: &[f64], share: f64) -> f64 {
    let at = share * values.len().saturating_sub(1) as f64;
    let below = crate::drawn::whole(at);
    let value = |at: usize| values.get(at).copied();
    let Some(low) = value(below) else { return 0.0 };
    let high = value(below + 1).unwrap_or(low);
    low + (high - low) * (at - at.floor())
}

/// The bin of a relative wait: the first for less than 0.01, then four for each factor of ten, the last for all that is more.
fn bin(relative_wait: f64) -> usize {
    if relative_wait < 0.01 {
        return 0;
    }
    (1 + crate::drawn::whole((relative_wait.log10() + 2.0) * BINS_PER_DECADE)).min(BINS - 1)
}

/// From which relative wait on a bin counts.
pub(crate) fn bin_from(bin: usize) -> f64 {
    10_f64.powf((bin as f64 - 1.0) / BINS_PER_DECADE - 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_that_of_the_thesis() {
        use Lateness::{Delayed, ExtremelyLate, Late, OnTime};
        for (duration, wait, class) in [
            (5_000, 1_999, OnTime),
            (5_000, 2_000, Delayed),
            (100, 14_999, Delayed),
            (100, 15_000, Late),
            (100, 45_000, ExtremelyLate),
            (10_000, 3_999, OnTime),
            (10_000, 4_000, Delayed),
            (10_000, 30_000, Late),
            (10_000, 89_999, Late),
            (10_000, 90_000, ExtremelyLate),
        ] {
            assert_eq!(lateness(duration, wait), class, "{duration} {wait}");
        }
    }

    #[test]
    fn percentiles_lie_between_neighbours() {
        assert!((percentile(&[1.0, 2.0, 3.0, 4.0], 0.5) - 2.5).abs() < 1e-12);
        assert!((percentile(&[7.0], 0.99) - 7.0).abs() < 1e-12);
        assert!(percentile(&[], 0.5).abs() < 1e-12);
    }

    #[test]
    fn every_wait_has_a_bin() {
        assert_eq!(bin(0.0), 0);
        assert_eq!(bin(0.01), 1);
        assert_eq!(bin(1e9), BINS - 1);
        assert!((1..BINS).all(|at| bin(bin_from(at) * 1.01) == at));
    }
}
