//! Repeated measurement of a task, as the author of a job asks for it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{location::FieldFault, number::Fraction};
use crate::{JobFault, TaskLimits};

/// Maximum number of measured runs of a task.
const RUNS_MAX: u32 = 1000;
/// Maximum number of runs before the first measured one.
const WARMUP_MAX: u32 = 100;
/// Maximum factor on the time limits of a measured run.
const FACTOR_MAX: f64 = 100.0;
/// Default factor on the time limits of a measured run.
const DEFAULT_FACTOR: f64 = 2.0;
/// Default of `max_runs`, as a factor on `runs`.
const DEFAULT_MORE: u32 = 5;

/// Repeated runs of a command to measure it. Each run is an execution of its own, which the action cache does not answer
/// and which is not merged with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasureRequest {
    /// Number of measured runs, 1 to 1000.
    pub runs: u32,
    /// Number of runs before the first measured one, whose times do not count: 0 to 100. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup: Option<u32>,
    /// Percentage above 0, at most 100: more runs follow until the 95 % interval of the median CPU time is within that
    /// percentage of the median. Default: `runs` runs, however wide the interval is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Fraction>,
    /// Maximum number of measured runs if `until` is set, `runs` to 1000. Default: five times `runs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runs: Option<u32>,
    /// Factor on `limits.cpu_ms` and `limits.wall_ms`, 1 to 100: a run that exceeds the product is killed and ends the
    /// measurement. A slower run below it counts, and the median is compared with the limit at the end. Default: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_factor: Option<Fraction>,
    /// Whether its runs may take place while other measured tasks of the job run. Default: false, one run at a time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parallel: bool,
    /// Maximum number of runs that are left out because something disturbed them, 0 to 1000: another run replaces each.
    /// With 0 disturbed runs count like others. Default: `runs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_disturbed: Option<u32>,
}

/// A checked plan of repeated runs, with its defaults applied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasurePlan {
    /// Number of runs before the first measured one.
    pub warmup: u32,
    /// Number of measured runs, at least 1.
    pub runs: u32,
    /// Width of the interval at which runs end, as a fraction of the median; absent: after `runs` runs.
    pub until: Option<f64>,
    /// Maximum number of measured runs, at least `runs`.
    pub max_runs: u32,
    /// Factor on the time limits that a single run is killed at.
    pub limit_factor: f64,
    /// Whether its runs may take place beside those of other measured tasks of the job.
    pub parallel: bool,
    /// Maximum number of disturbed runs that are left out; 0: disturbed runs count like others.
    pub max_disturbed: u32,
}

impl MeasurePlan {
    /// Checks what the author of a task asks for.
    pub(super) fn new(asked: &MeasureRequest) -> Result<Self, FieldFault> {
        let number = |field: &str, value: u32, least: u32, most: u32| {
            let fault = JobFault::OutsideRange {
                value: value.to_string(),
                least: least.to_string(),
                most: most.to_string(),
            };
            let is_valid = (least..=most).contains(&value);
            is_valid.then_some(value).ok_or_else(|| FieldFault::new(field, fault))
        };
        let runs = number("measure.runs", asked.runs, 1, RUNS_MAX)?;
        let max_runs = asked.max_runs.unwrap_or_else(|| {
            if asked.until.is_some() { runs.saturating_mul(DEFAULT_MORE).min(RUNS_MAX) } else { runs }
        });
        if asked.max_runs.is_some() && asked.until.is_none() {
            return Err(FieldFault::new("measure.max_runs", JobFault::NeedsUntil));
        }
        let until =
            asked.until.map(|percent| fraction("measure.until", percent, (0.0, 100.0))).transpose()?;
        let limit_factor = asked.limit_factor.map_or(Ok(DEFAULT_FACTOR), |factor| {
            fraction("measure.limit_factor", factor, (1.0, FACTOR_MAX))
        })?;
        if until == Some(0.0) {
            return Err(outside("measure.until", 0.0, (0.0, 100.0)));
        }
        Ok(Self {
            warmup: number("measure.warmup", asked.warmup.unwrap_or_default(), 0, WARMUP_MAX)?,
            runs,
            until: until.map(|percent| percent / 100.0),
            max_runs: number("measure.max_runs", max_runs, runs, RUNS_MAX)?,
            limit_factor,
            parallel: asked.parallel,
            max_disturbed: number("measure.max_disturbed", asked.max_disturbed.unwrap_or(runs), 0, RUNS_MAX)?,
        })
    }

    /// The limits that a single run is killed at.
    pub fn limits_of_a_run(&self, limits: TaskLimits) -> TaskLimits {
        let scaled = |limit: Option<u64>| limit.map(|ms| times(ms, self.limit_factor));
        TaskLimits { cpu_ms: scaled(limits.cpu_ms), wall_ms: scaled(limits.wall_ms), ..limits }
    }
}

/// A limit multiplied by a factor, rounded up.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "neither is negative, and a cast to u64 saturates"
)]
fn times(ms: u64, factor: f64) -> u64 {
    (ms as f64 * factor).ceil() as u64
}

fn fraction(field: &str, number: Fraction, (least, most): (f64, f64)) -> Result<f64, FieldFault> {
    let number = number.get();
    if (least..=most).contains(&number) { Ok(number) } else { Err(outside(field, number, (least, most))) }
}

fn outside(field: &str, value: f64, (least, most): (f64, f64)) -> FieldFault {
    let least = if least > 0.0 { least.to_string() } else { "more than 0".to_owned() };
    let fault = JobFault::OutsideRange { value: value.to_string(), least, most: most.to_string() };
    FieldFault::new(field, fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(json: &str) -> Result<MeasurePlan, String> {
        let asked: MeasureRequest = serde_json::from_str(json).map_err(|error| error.to_string())?;
        MeasurePlan::new(&asked).map_err(|FieldFault(field, fault)| format!("{field}: {fault}"))
    }

    #[test]
    fn defaults_of_a_plan_are_the_documented_ones() {
        let only_runs = plan(r#"{"runs": 7}"#).unwrap();
        assert_eq!((only_runs.warmup, only_runs.runs, only_runs.max_runs), (0, 7, 7));
        assert_eq!((only_runs.until, only_runs.parallel, only_runs.max_disturbed), (None, false, 7));
        let until = plan(r#"{"runs": 7, "until": 5}"#).unwrap();
        assert_eq!((until.max_runs, until.until), (35, Some(0.05)));
        assert_eq!(plan(r#"{"runs": 900, "until": 1}"#).unwrap().max_runs, 1000);
        let limits = TaskLimits { cpu_ms: Some(3), memory_bytes: Some(5), ..TaskLimits::default() };
        let of_a_run = only_runs.limits_of_a_run(limits);
        assert_eq!((of_a_run.cpu_ms, of_a_run.wall_ms, of_a_run.memory_bytes), (Some(6), None, Some(5)));
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_range() {
        for (json, expected) in [
            (r#"{"runs": 0}"#, "measure.runs: it is 0: expected 1 to 1000"),
            (r#"{"runs": 1001}"#, "measure.runs: it is 1001: expected 1 to 1000"),
            (r#"{"runs": 1, "warmup": 101}"#, "measure.warmup: it is 101: expected 0 to 100"),
            (r#"{"runs": 5, "until": 1, "max_runs": 4}"#, "measure.max_runs: it is 4: expected 5 to 1000"),
            (r#"{"runs": 5, "max_runs": 9}"#, "measure.max_runs: allowed only together with `until`"),
            (r#"{"runs": 5, "until": 0}"#, "measure.until: it is 0: expected more than 0 to 100"),
            (r#"{"runs": 5, "until": 101}"#, "measure.until: it is 101: expected more than 0 to 100"),
            (
                r#"{"runs": 5, "max_disturbed": 1001}"#,
                "measure.max_disturbed: it is 1001: expected 0 to 1000",
            ),
            (r#"{"runs": 5, "limit_factor": 0.5}"#, "measure.limit_factor: it is 0.5: expected 1 to 100"),
        ] {
            assert_eq!(plan(json).unwrap_err(), expected, "{json}");
        }
        assert!(plan(r#"{"runs": 5, "repeat": 1}"#).unwrap_err().contains("unknown field"));
    }
}
