use crate::report::{Report, TestError};
use thiserror::Error;

/// By how much an executor type's relative error may be worse than that of the model in use, as a part of the latter:
/// a test set of a day differs from that of the day before.
pub const TOLERANCE: f64 = 0.1;
/// By how much it may be worse whatever the latter, as a part of the default's error: between two models that are nearly
/// perfect nobody sees a difference.
const SLACK: f64 = 0.01;
/// An executor type tested on fewer builds than this, on either side, is not judged by: chance would decide.
const FEWEST_BUILDS: u64 = 200;

/// Why a model is not to be run.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Refusal {
    /// No executor type of it was tested.
    #[error("model {version} was tested on no build; train it on more builds")]
    Untested {
        /// The refused model.
        version: u64,
    },
    /// It lacks an executor type that the model in use predicts.
    #[error(
        "model {version} knows nothing of {executor_type}, which the model in use predicts; train it on builds that use it"
    )]
    Missing {
        /// The refused model.
        version: u64,
        /// The executor type it lacks.
        executor_type: String,
    },
    /// For an executor type it is worse than no model.
    #[error(
        "model {version} is off by {mean_absolute} ESU for {executor_type} on average, no better than the {constant} of always predicting 1 ESU; keep the model in use, or none"
    )]
    WorseThanConstant {
        /// The refused model.
        version: u64,
        /// The executor type it is bad at.
        executor_type: String,
        /// Its mean absolute error, in ESU.
        mean_absolute: f64,
        /// That of the constant default, in ESU.
        constant: f64,
    },
    /// For an executor type it is worse than the model in use.
    #[error(
        "model {version} is worse than the one in use for {executor_type}: {candidate:.3} of the error of always predicting 1 ESU, against {current:.3}; keep the model in use"
    )]
    Worse {
        /// The refused model.
        version: u64,
        /// The executor type it is worse at.
        executor_type: String,
        /// Its error as a part of the constant default's, on its own test builds.
        candidate: f64,
        /// Likewise of the model in use.
        current: f64,
    },
}

/// Whether an enqueuer should run `candidate` in place of `current`.
///
/// The two were tested on builds of different days, so that their errors are compared in relation: each as a part of
/// the error that the constant default of 1 ESU makes on the same builds ([`TestError::relative`]). A candidate is
/// refused if, for any executor type tested on 200 builds or more, it is no better than the constant; or is worse than
/// the current model, tested likewise, by more than [`TOLERANCE`] of the latter's relative error and a hundredth; or lacks the type
/// while the current model has it and is better than the constant there.
pub fn judge(candidate: &Report, current: Option<&Report>) -> Result<(), Refusal> {
    let version = candidate.version;
    if candidate.types.iter().all(|part| part.test.is_none()) {
        return Err(Refusal::Untested { version });
    }
    for part in &candidate.types {
        let Some(test) = part.test.filter(tells) else { continue };
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
        let Some(current) = part.test.filter(tells).map(|test| test.relative()) else { continue };
        let executor_type = part.executor_type.clone();
        let Some(candidate) = candidate.of(&part.executor_type) else {
            if current < 1.0 {
                return Err(Refusal::Missing { version, executor_type });
            }
            continue;
        };
        let Some(candidate) = candidate.test.filter(tells).map(|test| test.relative()) else { continue };
        if candidate > current * (1.0 + TOLERANCE) + SLACK {
            return Err(Refusal::Worse { version, executor_type, candidate, current });
        }
    }
    Ok(())
}

fn tells(test: &TestError) -> bool {
    test.builds >= FEWEST_BUILDS
}

#[cfg(test)]
mod tests;
