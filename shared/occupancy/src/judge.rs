use crate::report::{Report, TestError};
use thiserror::Error;

/// How much worse an executor type's relative error may be than that of the model in use, as a fraction of the latter.
/// It allows for test sets that differ from day to day.
pub const TOLERANCE: f64 = 0.1;
/// How much worse it may be in any case, as a fraction of the default's error: a difference between two nearly perfect
/// models has no effect.
const SLACK: f64 = 0.01;
/// Minimum number of test builds of each model to compare the two: with fewer, chance would decide.
const FEWEST_TO_COMPARE: u64 = 200;
/// Minimum number of test builds to compare a model with the constant default, which it has to beat clearly.
const FEWEST_TO_JUDGE: u64 = 20;

/// Why a model is refused.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Refusal {
    /// No executor type of the model was tested.
    #[error("model {version} was not tested on any build; train it on more builds")]
    Untested { version: u64 },
    /// It lacks an executor type that the model in use predicts.
    #[error(
        "model {version} does not cover {executor_type}, which the model in use predicts; train it on \
         builds that use it"
    )]
    Missing { version: u64, executor_type: String },
    /// It was tested on too few builds of an executor type for which the model in use is well tested and good.
    #[error(
        "model {version} was tested on only {builds} builds that use {executor_type}, but {FEWEST_TO_COMPARE} \
         are needed to replace the model in use; train it on more of them"
    )]
    Thin {
        version: u64,
        executor_type: String,
        /// Number of builds of this executor type that it was tested on.
        builds: u64,
    },
    /// For an executor type it does not beat the constant default, so it is worse than no model.
    #[error(
        "model {version} has a mean error of {mean_absolute} ESU for {executor_type}, not less than \
         the {constant} of always predicting 1 ESU; keep the model in use, or none"
    )]
    WorseThanConstant {
        version: u64,
        executor_type: String,
        /// Mean absolute error of the model, in ESU.
        mean_absolute: f64,
        /// Mean absolute error of the constant default, in ESU.
        constant: f64,
    },
    /// For an executor type it is worse than the model in use.
    #[error(
        "model {version} is worse than the one in use for {executor_type}: its error is {candidate:.3} \
         of the error of always predicting 1 ESU, against {current:.3}; keep the model in use"
    )]
    Worse {
        version: u64,
        executor_type: String,
        /// Its error as a fraction of the constant default's, on its own test builds.
        candidate: f64,
        /// Relative error of the model in use, on the test builds of that model.
        current: f64,
    },
}

/// Decides whether an enqueuer should run `candidate` in place of `current`.
///
/// The two were tested on builds of different days, so their relative errors are compared: each as a fraction of the
/// error that the constant default of 1 ESU makes on the same builds ([`TestError::relative`]). A candidate is refused
/// if, for any executor type,
///
/// - it was tested on 20 builds or more and is no better than the constant;
/// - or the current model was tested on 200 or more and is better than the constant, and the candidate lacks the
///   type or was tested on fewer than 200: a thin test must not replace a thorough one;
/// - or both were tested on 200 or more, and the candidate is worse by more than [`TOLERANCE`] of the current model's
///   relative error plus a hundredth.
pub fn judge(candidate: &Report, current: Option<&Report>) -> Result<(), Refusal> {
    let version = candidate.version;
    if candidate.types.iter().all(|part| part.test.is_none()) {
        return Err(Refusal::Untested { version });
    }
    for part in &candidate.types {
        let Some(test) = part.test.filter(|test| test.builds >= FEWEST_TO_JUDGE) else { continue };
        if test.relative() >= 1.0 {
            return Err(Refusal::WorseThanConstant {
                version,
                executor_type: part.executor_type.clone(),
                mean_absolute: test.mean_absolute,
                constant: test.constant,
            });
        }
    }
    let in_use = current.map(|report| report.types.as_slice()).unwrap_or_default();
    for part in in_use {
        if let Some(test) = part.test.filter(compares) {
            compare(candidate, &part.executor_type, test.relative())?;
        }
    }
    Ok(())
}

/// Compares the candidate with the relative error of the current, well-tested model for one executor type.
fn compare(candidate: &Report, executor_type: &str, current: f64) -> Result<(), Refusal> {
    let version = candidate.version;
    let executor_type = executor_type.to_owned();
    let part = candidate.of(&executor_type);
    let test = part.and_then(|part| part.test);
    match test.filter(compares).map(|test| test.relative()) {
        Some(candidate) if candidate > current * (1.0 + TOLERANCE) + SLACK => {
            Err(Refusal::Worse { version, executor_type, candidate, current })
        }
        Some(_) => Ok(()),
        // Nothing is lost with a model that is no better than the constant.
        None if current >= 1.0 => Ok(()),
        None if part.is_none() => Err(Refusal::Missing { version, executor_type }),
        None => Err(Refusal::Thin { version, executor_type, builds: test.map_or(0, |test| test.builds) }),
    }
}

const fn compares(test: &TestError) -> bool {
    test.builds >= FEWEST_TO_COMPARE
}

#[cfg(test)]
mod tests;
