//! Summaries of measured runs, for reports.

use model::{MeasurePlan, MeasuredRun, Measurement, MeasurementState, TimeSummary};

use super::{
    disturbance::{disturbed, summarised},
    sample::{Sample, Statistic},
};

/// The summary of times in microseconds; `None` if there are none.
pub fn time_summary(times_us: impl IntoIterator<Item = u64>) -> Option<TimeSummary> {
    let sample = Sample::new(times_us.into_iter().map(|time| time as f64))?;
    let interval = sample.interval(Statistic::Median);
    Some(TimeSummary {
        n: sample.n() as u64,
        min_us: whole(sample.min()),
        max_us: whole(sample.max()),
        median_us: whole(sample.median()),
        mean_us: whole(sample.mean()),
        trimmed_mean_us: whole(sample.trimmed_mean()),
        standard_deviation_us: whole(sample.standard_deviation()),
        mad_us: whole(sample.mad()),
        low_us: whole(interval.low),
        high_us: whole(interval.high),
    })
}

/// The measurement that consists of these runs, after `warmup` others; `None` if there are none.
pub fn measurement(
    plan: &MeasurePlan,
    runs: &[MeasuredRun],
    warmup: u32,
    state: MeasurementState,
) -> Option<Measurement> {
    let summarised = summarised(plan, runs);
    let figures = || summarised.iter().map(|run| run.figures);
    let sum = |all: &mut dyn Iterator<Item = u64>| all.fold(0_u64, u64::saturating_add);
    Some(Measurement {
        state,
        cpu: time_summary(figures().map(|run| run.cpu_us))?,
        wall: time_summary(figures().map(|run| run.wall_us))?,
        memory_bytes: figures().map(|run| run.memory_bytes).max()?,
        voluntary_switches: sum(&mut figures().map(|run| run.voluntary_switches)),
        involuntary_switches: sum(&mut figures().map(|run| run.involuntary_switches)),
        warmup,
        disturbed: disturbed(runs),
        runs: runs.to_vec(),
    })
}

/// The summary of the times that the program itself reported in the runs that count.
pub fn reported_times(plan: &MeasurePlan, runs: &[MeasuredRun]) -> Option<TimeSummary> {
    time_summary(summarised(plan, runs).into_iter().flat_map(|run| run.reported_us.iter().copied()))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "statistics of times are not negative, and a cast to u64 saturates"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}
