//! Whether a measured run was disturbed, and which runs count.
//!
//! The kernel counts steal and idle time in ticks of 10 ms, so a disturbance of less than about two ticks is never found:
//! of runs that take less than half a second, only large disturbances are.

use model::{Disturbance, Interference, MeasurePlan, MeasuredRun, RunFigures};

/// Microseconds of a tick, in which the kernel counts the time of a processor.
const TICK_US: u64 = 10_000;
/// Steal time in thousandths of the time of the processors. Medians of runs on a quiet machine differ by about 1 %
/// (`docs/benchmarks.md`, stability), so more than twice that is seen in the result.
const STEAL_MAX: u64 = 20;
/// CPU time of others on processors of its own, in thousandths of their time: as much as steal time, for the same reason.
const OTHER_ON_OWN_MAX: u64 = 20;
/// CPU time of others on processors that all share, in thousandths of their time: one busy process on a machine with 20
/// cores, from which the thesis measures instability (section 2.4.5). Most of it is on other cores, which
/// share caches and memory with these.
const OTHER_ON_SHARED_MAX: u64 = 50;
/// Involuntary context switches per second. The kernel's own threads cause a few; a process that competes for the
/// processor causes one for each of its slices of some milliseconds, which is more than a hundred.
const PREEMPTIONS_MAX: u64 = 20;
/// CPU time of others, in thousandths of the run time, below which a run preempts only itself, with its own processes.
const PREEMPTING_MIN: u64 = 20;

/// What disturbed a run. Empty if nothing did, or if that was not measured.
pub fn disturbances(run: &RunFigures) -> Vec<Disturbance> {
    let Some(seen) = run.interference else { return Vec::new() };
    let Interference { processors, own_processors, throttled_periods, thermal_throttles, .. } = seen;
    let processors = u64::from(processors.max(1));
    let available = run.wall_us.saturating_mul(processors);
    // Each processor is counted in ticks, so each may add a fraction of one.
    let rounding = TICK_US.saturating_mul(processors.saturating_add(1));
    let exceeds = |time: u64, of: u64, most: u64| time > rounding.max(of / 1000 * most);
    let other_max = if own_processors { OTHER_ON_OWN_MAX } else { OTHER_ON_SHARED_MAX };
    let preemptions_max = (run.wall_us / 1000).saturating_mul(PREEMPTIONS_MAX) / 1000;
    let preempted = run.involuntary_switches > preemptions_max.max(PREEMPTIONS_MAX)
        && exceeds(seen.other_us, run.wall_us, PREEMPTING_MIN);
    [
        (Disturbance::Steal, exceeds(seen.steal_us, available, STEAL_MAX)),
        (Disturbance::OtherLoad, exceeds(seen.other_us, available, other_max)),
        (Disturbance::Preempted, preempted),
        (Disturbance::Throttled, throttled_periods > 0),
        (Disturbance::ThermalThrottling, thermal_throttles > 0),
    ]
    .into_iter()
    .filter_map(|(disturbance, found)| found.then_some(disturbance))
    .collect()
}

/// Number of runs that something disturbed.
pub(super) fn disturbed(runs: &[MeasuredRun]) -> u32 {
    let disturbed = runs.iter().filter(|run| !run.disturbed_by.is_empty()).count();
    u32::try_from(disturbed).unwrap_or(u32::MAX)
}

/// The runs that count towards the number of runs of `plan`: those that nothing disturbed, or all, if more were disturbed
/// than it leaves out.
pub(super) fn counting<'a>(plan: &MeasurePlan, runs: &'a [MeasuredRun]) -> Vec<&'a MeasuredRun> {
    let gave_up = disturbed(runs) > plan.max_disturbed;
    runs.iter().filter(|run| gave_up || run.disturbed_by.is_empty()).collect()
}

/// The runs that a summary contains: those that count, or all if none does.
pub(super) fn summarised<'a>(plan: &MeasurePlan, runs: &'a [MeasuredRun]) -> Vec<&'a MeasuredRun> {
    let counting = counting(plan, runs);
    if counting.is_empty() { runs.iter().collect() } else { counting }
}
