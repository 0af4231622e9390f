//! Whether a measured task runs once more, and what its runs say about its time limits.

use model::{MeasurePlan, MeasuredRun, Measurement, MeasurementState, TaskLimits};

use super::{
    disturbance::{counting, disturbed},
    sample::{Sample, Statistic},
};
use crate::actions::limits::Limit;

/// Minimum number of runs of which an interval can end a measurement: that of fewer says nothing.
const INTERVAL_RUNS_MIN: usize = 5;

/// What a measured task does next, if all its runs so far are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextRun {
    /// It runs once more, and the run does not count.
    Warmup,
    /// It runs once more, and the run is measured.
    Measured,
    /// Its measurement is complete, for this reason.
    Done(MeasurementState),
}

/// What follows after `warmed` runs that do not count, and these measured ones. A disturbed run is replaced by another, as
/// long as the plan leaves it out; after that all runs count, and the state says so.
pub fn next_run(plan: &MeasurePlan, warmed: u32, runs: &[MeasuredRun]) -> NextRun {
    if runs.is_empty() && warmed < plan.warmup {
        return NextRun::Warmup;
    }
    let counting = counting(plan, runs);
    let number = u32::try_from(counting.len()).unwrap_or(u32::MAX);
    if number < plan.runs {
        return NextRun::Measured;
    }
    let cpu_us: Vec<u64> = counting.iter().map(|run| run.figures.cpu_us).collect();
    let state = match plan.until {
        None => MeasurementState::AllRuns,
        Some(until) if is_narrow(&cpu_us, until) => MeasurementState::Narrow,
        Some(_) if number >= plan.max_runs => MeasurementState::StillWide,
        Some(_) => return NextRun::Measured,
    };
    let gave_up = plan.max_disturbed > 0 && disturbed(runs) > plan.max_disturbed;
    NextRun::Done(if gave_up { MeasurementState::Disturbed } else { state })
}

/// Whether the interval of the median lies within the fraction `until` of the median.
fn is_narrow(cpu_us: &[u64], until: f64) -> bool {
    let sample = Sample::new(cpu_us.iter().map(|time| *time as f64));
    let Some(sample) = sample.filter(|sample| sample.n() >= INTERVAL_RUNS_MIN) else { return false };
    let (median, interval) = (sample.median(), sample.interval(Statistic::Median));
    let distance = (interval.high - median).max(median - interval.low);
    distance <= until * median
}

/// The time limit that the median of the runs exceeds, as text for a report; `None` if they keep all.
pub fn slow_median(limits: &TaskLimits, measured: &Measurement) -> Option<String> {
    [(Limit::Cpu, measured.cpu), (Limit::Wall, measured.wall)].into_iter().find_map(|(limit, times)| {
        let allowed = limit.of(limits)?;
        // In microseconds: a median of 1000.4 ms exceeds a limit of 1000 ms.
        (times.median_us > allowed.saturating_mul(1000)).then(|| {
            let median = times.median_us as f64 / 1000.0;
            let (n, unit, name) = (times.n, limit.unit(), limit.name());
            format!("the median of {n} runs is {median} {unit}: the limit {name} is {allowed}")
        })
    })
}
