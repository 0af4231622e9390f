use crate::cross::Cross;
use serde::{Deserialize, Serialize};

/// What a model says of itself, to be shown and to be judged by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Number of this model, given by who trained it.
    pub version: u64,
    /// When it was trained, in milliseconds since 1970, given by who trained it.
    pub trained_at_ms: u64,
    /// Builds it learned from.
    pub builds: u64,
    /// Values with a weight of their own; all others share one per kind (OOV).
    pub words: u64,
    /// By executor type.
    pub types: Vec<TypeReport>,
}

/// The part of a [`Report`] on one executor type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TypeReport {
    /// The executor type.
    pub executor_type: String,
    /// Builds its model learned from: those that asked for it.
    pub builds: u64,
    /// Weights the crosses' values are hashed into.
    pub buckets: u64,
    /// The crosses it was learned with.
    pub crosses: Vec<Cross>,
    /// How well it does on builds it did not learn from; none if there were none.
    pub test: Option<TestError>,
}

/// Errors over the builds of one executor type held out for testing: 5 % of all (section 4.3), in ESU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TestError {
    /// Builds tested on.
    pub builds: u64,
    /// Mean absolute error, in ESU (section 5.3).
    pub mean_absolute: f64,
    /// Mean square error, in ESU² (section 5.3).
    pub mean_square: f64,
    /// Mean absolute error of predicting 1 ESU for every build, the default without a model (section 5.3).
    pub constant: f64,
    /// Mean absolute error of predicting the mean of the build's quota group.
    pub group_mean: f64,
    /// Mean ESU the builds did occupy.
    pub actual: f64,
    /// Mean ESU predicted for them.
    pub predicted: f64,
}

impl Report {
    /// The part on one executor type.
    #[must_use]
    pub fn of(&self, executor_type: &str) -> Option<&TypeReport> {
        self.types.iter().find(|part| part.executor_type == executor_type)
    }
}

impl TestError {
    /// Mean absolute error as a part of that of the constant default: below 1 is better than no model.
    #[must_use]
    pub fn relative(&self) -> f64 {
        if self.constant > 0.0 { self.mean_absolute / self.constant } else { f64::INFINITY }
    }
}
