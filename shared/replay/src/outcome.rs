//! Outcome of a stream: how late its jobs started (section 3.6.4 of the thesis), and when the last one ended.

use crate::{
    run::Start,
    stream::{Job, Stream},
};

/// Number of equal parts, by order of arrival, for which lateness is reported separately.
pub const WINDOWS: usize = 20;
/// Number of bins of relative waits: the first for less than 0.01, then four for each factor of ten.
pub const BINS: usize = 24;
/// Number of bins per factor of ten.
const BINS_PER_DECADE: f64 = 4.0;
/// Duration in milliseconds above which a job is judged by its relative wait.
const SHORT_MS: u64 = 5_000;

/// Lateness of a job's start: for a job of up to 5 s, by its wait (2, 15, 45 s); for a longer one, by its wait
/// relative to its duration (0.4, 3, 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lateness {
    /// The wait is acceptable to users.
    OnTime,
    /// The wait is noticeable to users.
    Delayed,
    /// The wait is annoying to users.
    Late,
    /// The wait is so long that users give up.
    ExtremelyLate,
}

impl Lateness {
    /// All classes, best first.
    pub const ALL: [Self; 4] = [Self::OnTime, Self::Delayed, Self::Late, Self::ExtremelyLate];
}

/// Outcome of a whole stream.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QueueOutcome {
    pub jobs: u64,
    /// Number of jobs per class, in the order of [`Lateness::ALL`].
    pub classes: [u64; 4],
    /// Number of jobs per class for each twentieth of the stream.
    pub windows: Vec<[u64; 4]>,
    /// Wait relative to duration: the 50th, 95th and 99th percentile, linearly interpolated.
    pub relative_wait: [f64; 3],
    /// Number of jobs by relative wait, in bins of exponentially growing width.
    pub wait_bins: Vec<u64>,
    /// End of the last job in milliseconds since the beginning.
    pub makespan_ms: u64,
}

impl QueueOutcome {
    /// Percentage of the jobs in a class.
    pub fn percentage(&self, class: Lateness) -> f64 {
        let Some(count) = self.classes.get(class as usize) else {
            unreachable!("{class:?} has no count");
        };
        100.0 * *count as f64 / (self.jobs as f64).max(1.0)
    }
}

/// Returns the lateness of a job of `duration_ms` that waited for `wait_ms`.
pub fn lateness(duration_ms: u64, wait_ms: u64) -> Lateness {
    let limits = if duration_ms > SHORT_MS {
        // Compare whole numbers: 0.4, 3 and 9 times the duration.
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

/// Computes the outcome of `stream` from the start of each job.
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
        let Some(window) = outcome.windows.get_mut(number * WINDOWS / stream.jobs.len()) else {
            unreachable!("job {number} is in no window");
        };
        for counts in [&mut outcome.classes, window] {
            let Some(count) = counts.get_mut(class) else {
                unreachable!("lateness {class} has no count");
            };
            *count += 1;
        }
        let waited = relative_wait(job, wait);
        let Some(count) = outcome.wait_bins.get_mut(bin(waited)) else {
            unreachable!("a wait of {waited} has no bin");
        };
        *count += 1;
        relative.push(waited);
        outcome.makespan_ms = outcome.makespan_ms.max(start.start_ms.saturating_add(job.duration_ms));
    }
    relative.sort_unstable_by(f64::total_cmp);
    outcome.relative_wait = [0.5, 0.95, 0.99].map(|share| percentile(&relative, share));
    outcome
}

/// Wait relative to the duration. Jobs of no duration count as 1 ms long.
fn relative_wait(job: &Job, wait_ms: u64) -> f64 {
    wait_ms as f64 / job.duration_ms.max(1) as f64
}

/// Value below which `share` of the sorted `values` lie, linearly interpolated.
fn percentile(values: &[f64], share: f64) -> f64 {
    let at = share * values.len().saturating_sub(1) as f64;
    let below = index(at);
    let value = |at: usize| values.get(at).copied();
    let Some(low) = value(below) else { return 0.0 };
    let high = value(below + 1).unwrap_or(low);
    low + (high - low) * (at - at.floor())
}

/// A number without its fraction, as an index; 0 for a negative number.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast to usize saturates, as intended"
)]
fn index(number: f64) -> usize {
    number as usize
}

/// Bin of a relative wait: the first for less than 0.01, then four for each factor of ten, the last
/// for all larger ones.
fn bin(relative_wait: f64) -> usize {
    if relative_wait < 0.01 {
        return 0;
    }
    (1 + index((relative_wait.log10() + 2.0) * BINS_PER_DECADE)).min(BINS - 1)
}

/// Smallest relative wait of a bin.
pub fn bin_from(bin: usize) -> f64 {
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
