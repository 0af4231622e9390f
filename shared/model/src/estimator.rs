//! Estimators of run times.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The rule by which run times of builds are estimated. The exact rules are policy: see `policy::estimate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EstimatorKind {
    /// The rule of section 3.4.1 of the thesis.
    #[default]
    Thesis,
    /// The best recent rule out of several.
    Adaptive,
}

impl EstimatorKind {
    pub const ALL: [Self; 2] = [Self::Thesis, Self::Adaptive];

    /// Name in settings and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Thesis => "thesis",
            Self::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for EstimatorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
