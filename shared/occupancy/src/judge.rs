use crate::report::{Report, TestError};
use thiserror::Error;

/// By how much an executor type's relative error may be worse than that of the model in use, as a part of the latter:
/// a test set of a day differs from that of the day before.
pub const TOLERANCE: f64 = 0.1;
/// By how much it may be worse whatever the latter, as a part of the default's error: between two models that are nearly
/// perfect nobody sees a difference.
const SLACK: f64 = 0.01;
/// On fewer test builds than this, on either side, two models are not compared: chance would decide.
const FEWEST_TO_COMPARE: u64 = 200;
/// On fewer test builds than this a model is not even compared with the constant, which it has to beat by far.
const FEWEST_TO_JUDGE: u64 = 20;

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
    /// It was hardly tested for an executor type that the model in use is known to be good at.
    #[error(
        "model {version} was tested on {builds} builds that use {executor_type}, {FEWEST_TO_COMPARE} are needed to replace the model in use, which was; train it on more of them"
    )]
    Thin {
        /// The refused model.
        version: u64,
        /// The executor type it was hardly tested for.
        executor_type: String,
        /// The builds it was tested on there.
        builds: u64,
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
/// refused if, for any executor type,
///
/// - it was tested on 20 builds or more and is no better than the constant;
/// - or the current model was tested on 200 or more and is better than the constant, and the candidate lacks the type, or
///   was tested on fewer than 200: a thin test must not replace a thick one;
/// - or both were tested on 200 or more, and the candidate is worse by more than [`TOLERANCE`] of the current model's
///   relative error and a hundredth.
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

/// The candidate against the relative error of the current model, well tested, for one executor type.
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
        // Nothing is lost with what is no better than the constant.
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
