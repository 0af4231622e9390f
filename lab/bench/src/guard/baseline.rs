//! The files with the expected rates and with the limits of counts.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    cases::Case,
    compare::{Counts, Rates},
};
use crate::{error::BenchError, report::processors};

const REMEDY: &str = "write it with `make bench-baseline`";

/// Rates of a release binary.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Baseline {
    /// Commit of the measured program.
    commit: String,
    /// Cargo profile of the measured program.
    pub(crate) profile: String,
    /// Number of processors of the machine, on which all ratios depend.
    pub(crate) processors: usize,
    /// How the figures were measured.
    made_by: String,
    cases: BTreeMap<Case, Rates>,
}

impl Baseline {
    /// The figures of this program on this machine.
    pub(crate) fn new(commit: &str, cases: BTreeMap<Case, Rates>) -> Self {
        Self {
            commit: commit.to_owned(),
            profile: profile().to_owned(),
            processors: processors(),
            made_by: "make bench-baseline: the medians of three measurements of each case".to_owned(),
            cases,
        }
    }

    /// The worse one of each figure of both.
    pub(crate) fn worst_of(mut self, known: &Self) -> Self {
        for (case, figures) in &mut self.cases {
            if let Some(known) = known.cases.get(case) {
                *figures = figures.worst(known);
            }
        }
        self.made_by.push_str(", or worse figures of another machine");
        self
    }

    pub(crate) fn read(file: &Path) -> Result<Self, BenchError> {
        let failed = |error: &dyn std::error::Error| {
            BenchError::usage(format!("cannot read {}: {REMEDY}", file.display()), error)
        };
        let text = std::fs::read(file).map_err(|error| failed(&error))?;
        serde_json::from_slice(&text).map_err(|error| failed(&error))
    }

    pub(crate) fn write(&self, file: &Path) -> Result<(), BenchError> {
        let failed = |error: &dyn std::error::Error| {
            BenchError::usage(format!("cannot write {}", file.display()), error)
        };
        let mut text = serde_json::to_string_pretty(self).map_err(|error| failed(&error))?;
        text.push('\n');
        std::fs::write(file, text).map_err(|error| failed(&error))
    }

    /// The expected figures of a case; `file` is for the error.
    pub(crate) fn of(&self, case: Case, file: &Path) -> Result<&Rates, BenchError> {
        let missing = || BenchError::Usage(format!("{} has no figures of {case}: {REMEDY}", file.display()));
        self.cases.get(&case).ok_or_else(missing)
    }
}

/// The part of the budgets that is about builds and actions: most messages and Redis commands, by case.
#[derive(Debug, Deserialize)]
pub(crate) struct Budget {
    counts: BTreeMap<Case, Counts>,
}

impl Budget {
    pub(crate) fn read(file: &Path) -> Result<Self, BenchError> {
        let failed = |error: &dyn std::error::Error| {
            BenchError::usage(format!("cannot read the budgets in {}", file.display()), error)
        };
        let text = std::fs::read_to_string(file).map_err(|error| failed(&error))?;
        toml::from_str(&text).map_err(|error| failed(&error))
    }

    /// The limits of a case; `file` is for the error.
    pub(crate) fn of(&self, case: Case, file: &Path) -> Result<&Counts, BenchError> {
        let missing = || BenchError::Usage(format!("{} has no table counts.{case}", file.display()));
        self.counts.get(&case).ok_or_else(missing)
    }
}

/// Cargo profile of this program.
pub(crate) fn profile() -> &'static str {
    if cfg!(debug_assertions) { "dev" } else { "release" }
}
