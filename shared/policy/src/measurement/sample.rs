//! A sample of measured values, and its statistics.

use invariant::Present as _;

use super::interval::Interval;
use crate::Random;

/// Number of resamples of a bootstrap.
const RESAMPLES: usize = 1000;
/// Positions of the ends of a 95 % interval among the sorted statistics of the resamples, from 0.
const ENDS: (usize, usize) = (24, 975);
/// Seed of all bootstraps: the same sample always has the same interval.
const SEED: u64 = 0x666f_7265_6261_7901;
/// A trimmed mean leaves out one in this many values at each end.
const TRIMMED: usize = 10;

/// At least one finite value, sorted.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample(Vec<f64>);

/// A statistic of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistic {
    /// The value in the middle: of an even number of values, the mean of the two in the middle.
    Median,
    /// The mean of all values.
    Mean,
    /// The standard deviation of the sample, with n - 1 degrees of freedom; 0 for a single value.
    StandardDeviation,
}

impl Sample {
    /// Creates a sample; `None` if there are no values, or one is not finite.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        values.sort_unstable_by(f64::total_cmp);
        Some(Self(values))
    }

    /// Number of values, at least 1.
    pub fn n(&self) -> usize {
        self.0.len()
    }

    /// The smallest value of the sample.
    pub fn min(&self) -> f64 {
        self.0.first().copied().present("the first value of a sample")
    }

    /// The largest value of the sample.
    pub fn max(&self) -> f64 {
        self.0.last().copied().present("the last value of a sample")
    }

    /// The median of the sample.
    pub fn median(&self) -> f64 {
        median_of_sorted(&self.0)
    }

    /// The mean of the sample.
    pub fn mean(&self) -> f64 {
        mean(&self.0)
    }

    /// The mean without the lowest tenth and the highest tenth of the values, both rounded down to whole values.
    pub fn trimmed_mean(&self) -> f64 {
        let cut = self.n() / TRIMMED;
        mean(self.0.get(cut..self.n() - cut).present("the middle of a sample"))
    }

    /// The standard deviation of the sample, with n - 1 degrees of freedom; 0 for a single value.
    pub fn standard_deviation(&self) -> f64 {
        standard_deviation(&self.0)
    }

    /// The median of the distances from the median.
    pub fn mad(&self) -> f64 {
        let median = self.median();
        let mut distances: Vec<f64> = self.0.iter().map(|value| (value - median).abs()).collect();
        distances.sort_unstable_by(f64::total_cmp);
        median_of_sorted(&distances)
    }

    /// The 95 % interval of a statistic, by 1000 bootstrap resamples.
    pub fn interval(&self, statistic: Statistic) -> Interval {
        let mut random = Random::new(SEED);
        let size = self.n();
        let mut resample = vec![0.0; size];
        let mut found: Vec<f64> = Vec::with_capacity(RESAMPLES);
        for _ in 0..RESAMPLES {
            for place in &mut resample {
                let drawn = usize::try_from(random.below(size as u64)).present("an index of a sample");
                *place = self.0.get(drawn).copied().present("a drawn value of a sample");
            }
            found.push(match statistic {
                Statistic::Median => median(&mut resample),
                Statistic::Mean => mean(&resample),
                Statistic::StandardDeviation => standard_deviation(&resample),
            });
        }
        found.sort_unstable_by(f64::total_cmp);
        let at = |place: usize| found.get(place).copied().present("the statistic of a resample");
        Interval { low: at(ENDS.0), high: at(ENDS.1) }
    }
}

fn median_of_sorted(values: &[f64]) -> f64 {
    let at = |place: usize| values.get(place).copied().present("a value in the middle of a sample");
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { at(middle) } else { f64::midpoint(at(middle - 1), at(middle)) }
}

/// The median of values in any order, which it reorders: in time proportional to their number.
fn median(values: &mut [f64]) -> f64 {
    let (middle, is_odd) = (values.len() / 2, values.len() % 2 == 1);
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    if is_odd {
        return *upper;
    }
    let lower = below.iter().copied().max_by(f64::total_cmp).present("the lower half of a sample");
    f64::midpoint(lower, *upper)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn standard_deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}
