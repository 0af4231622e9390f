use crate::cross::Cross;
use serde::{Deserialize, Serialize};

/// Description of a model, for display and for [`judge`](crate::judge()).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this model, assigned by its trainer.
    pub version: u64,
    /// Training time in milliseconds since 1970, assigned by its trainer.
    pub trained_at_ms: u64,
    /// Number of builds that it learned from.
    pub builds: u64,
    /// Number of values with their own weight; all others share one weight per kind (OOV).
    pub words: u64,
    /// One part per executor type.
    pub types: Vec<TypeReport>,
}

/// The part of a [`Report`] on one executor type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TypeReport {
    /// Name of the executor type.
    pub executor_type: String,
    /// Number of builds that its model learned from: those that asked for this type.
    pub builds: u64,
    /// Number of weights that the crosses' values are hashed into.
    pub buckets: u64,
    /// The crosses that it was learned with.
    pub crosses: Vec<Cross>,
    /// Errors on builds that it did not learn from; `None` if there were none.
    pub test: Option<TestError>,
}

/// Errors over the builds of one executor type held out for testing: 5 % of all (section 4.3 of the paper), in ESU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TestError {
    /// Number of builds tested on.
    pub builds: u64,
    /// Mean absolute error, in ESU (section 5.3 of the paper).
    pub mean_absolute: f64,
    /// Mean square error, in ESU² (section 5.3 of the paper).
    pub mean_square: f64,
    /// Mean absolute error of predicting 1 ESU for every build, the default without a model (section 5.3 of the paper).
    pub constant: f64,
    /// Mean absolute error of predicting the mean of the build's quota group.
    pub group_mean: f64,
    /// Mean ESU that the builds occupied.
    pub actual: f64,
    /// Mean ESU predicted for the builds.
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
    /// Mean absolute error as a fraction of that of the constant default: below 1 is better than no model.
    #[must_use]
    pub fn relative(&self) -> f64 {
        if self.constant > 0.0 { self.mean_absolute / self.constant } else { f64::INFINITY }
    }
}
