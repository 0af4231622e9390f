use crate::report::TestError;
use std::collections::HashMap;

/// ESU predicted for a build without a model (section 5.3 of the paper).
const CONSTANT: f64 = 1.0;

/// Mean ESU by quota group, the simple predictor that a model has to beat.
#[derive(Debug, Default)]
pub(crate) struct GroupMeans {
    groups: HashMap<u32, (f64, f64)>,
    all: (f64, f64),
}

impl GroupMeans {
    pub(crate) fn add(&mut self, group: u32, esu: f64) {
        let of_group = self.groups.entry(group).or_default();
        for (sum, builds) in [of_group, &mut self.all] {
            *sum += esu;
            *builds += 1.0;
        }
    }

    /// Mean of the group; mean of all groups if the group is unknown.
    fn of(&self, group: u32) -> f64 {
        let (sum, builds) = self.groups.get(&group).copied().unwrap_or(self.all);
        if builds > 0.0 { sum / builds } else { CONSTANT }
    }
}

/// Sums of errors over test builds.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    builds: u64,
    absolute: f64,
    square: f64,
    constant: f64,
    group_mean: f64,
    actual: f64,
    predicted: f64,
}

impl Errors {
    pub(crate) fn add(&mut self, actual: f64, predicted: f64, group: u32, means: &GroupMeans) {
        let error = actual - predicted;
        self.builds += 1;
        self.absolute += error.abs();
        self.square += error * error;
        self.constant += (actual - CONSTANT).abs();
        self.group_mean += (actual - means.of(group)).abs();
        self.actual += actual;
        self.predicted += predicted;
    }

    /// Mean errors; `None` without builds.
    pub(crate) fn mean(&self) -> Option<TestError> {
        let builds = self.builds as f64;
        (self.builds > 0).then(|| TestError {
            builds: self.builds,
            mean_absolute: self.absolute / builds,
            mean_square: self.square / builds,
            constant: self.constant / builds,
            group_mean: self.group_mean / builds,
            actual: self.actual / builds,
            predicted: self.predicted / builds,
        })
    }
}
