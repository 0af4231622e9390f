//! The error of estimates of occupancy, against the ESU that builds used.

use std::collections::{BTreeMap, VecDeque};

use model::{EstimateError, Esu, ExecutorType, Occupancy};

/// Number of the latest builds of a type that the error is computed over.
const LATEST: usize = 1000;
/// Squared millionths in a squared unit.
const MICROS_SQUARED: f64 = 1e12;

/// Errors of the latest estimates by executor type. A sum is exact, because ESU are whole millionths.
#[derive(Debug, Clone, Default)]
pub struct OccupancyError(BTreeMap<ExecutorType, Latest>);

#[derive(Debug, Clone, Default)]
struct Latest {
    /// Estimate minus use of each build, oldest first.
    errors: VecDeque<Esu>,
    sum: Esu,
    sum_absolute: Esu,
    /// In millionths of ESU, squared.
    sum_square: i128,
}

impl Latest {
    fn add(&mut self, error: Esu) {
        if self.errors.len() >= LATEST
            && let Some(oldest) = self.errors.pop_front()
        {
            self.sum = self.sum - oldest;
            self.sum_absolute = self.sum_absolute - absolute(oldest);
            self.sum_square -= square(oldest);
        }
        self.errors.push_back(error);
        self.sum = self.sum + error;
        self.sum_absolute = self.sum_absolute + absolute(error);
        self.sum_square += square(error);
    }
}

impl OccupancyError {
    /// Adds a build that ended: its estimate, and the ESU that it used on average. A type that occurs in only one of
    /// them counts with 0 in the other.
    pub fn observe(&mut self, estimate: &Occupancy, used: &Occupancy) {
        let only_used = used.0.keys().filter(|kind| !estimate.0.contains_key(*kind));
        for kind in estimate.0.keys().chain(only_used) {
            let latest = self.0.entry(kind.clone()).or_default();
            latest.add(estimate.get(kind).or_zero() - used.get(kind).or_zero());
        }
    }

    /// The means over the latest builds of each type.
    pub fn means(&self) -> BTreeMap<ExecutorType, EstimateError> {
        let mean = |(kind, latest): (&ExecutorType, &Latest)| {
            let builds = latest.errors.len().max(1) as f64;
            let error = EstimateError {
                builds: latest.errors.len() as u64,
                mean: latest.sum.units() / builds,
                mean_absolute: latest.sum_absolute.units() / builds,
                mean_square: latest.sum_square as f64 / (MICROS_SQUARED * builds),
            };
            (kind.clone(), error)
        };
        self.0.iter().map(mean).collect()
    }
}

fn absolute(error: Esu) -> Esu {
    error.max(-error)
}

fn square(error: Esu) -> i128 {
    i128::from(error.micros()).pow(2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn x86(units: f64) -> Occupancy {
        Occupancy::of_each([ExecutorType::x86()], Esu::new(units).unwrap())
    }

    #[test]
    fn errors_in_both_directions_cancel_out_only_in_the_mean() {
        let mut errors = OccupancyError::default();
        errors.observe(&x86(3.0), &x86(1.0));
        let gpu: ExecutorType = "gpu".parse().unwrap();
        let used = Occupancy::of_each([ExecutorType::x86(), gpu.clone()], Esu::new(4.0).unwrap());
        errors.observe(&x86(2.0), &used);
        let means = errors.means();
        let of_x86 = EstimateError { builds: 2, mean: 0.0, mean_absolute: 2.0, mean_square: 4.0 };
        assert_eq!(means[&ExecutorType::x86()], of_x86);
        let of_gpu = EstimateError { builds: 1, mean: -4.0, mean_absolute: 4.0, mean_square: 16.0 };
        assert_eq!(means[&gpu], of_gpu);
    }

    proptest! {
        #[test]
        fn only_the_latest_builds_count(all in prop::collection::vec((0.0..50.0, 0.0..50.0), 1..2500)) {
            let mut errors = OccupancyError::default();
            for (estimate, used) in &all {
                errors.observe(&x86(*estimate), &x86(*used));
            }
            let latest = &all[all.len().saturating_sub(LATEST)..];
            let mean = latest.iter().map(|(estimate, used)| estimate - used).sum::<f64>() / latest.len() as f64;
            let square = |(estimate, used): &(f64, f64)| (estimate - used).powi(2);
            let mean_square = latest.iter().map(square).sum::<f64>() / latest.len() as f64;
            let found = errors.means()[&ExecutorType::x86()];
            prop_assert!((found.mean_square - mean_square).abs() < 1e-3, "{found:?}, {mean_square}");
            prop_assert_eq!(found.builds, latest.len() as u64);
            prop_assert!((found.mean - mean).abs() < 1e-4 && found.mean_absolute >= found.mean.abs() - 1e-9);
        }
    }
}
