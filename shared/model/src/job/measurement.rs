//! What is reported of a measured task: figures of each run, and their summaries.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::interference::{Disturbance, Interference};

/// What one run of a command used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct RunFigures {
    /// CPU time in microseconds, user and system, of all its processes.
    pub cpu_us: u64,
    /// Wall-clock run time in microseconds, without the preparation of its sandbox.
    pub wall_us: u64,
    /// Peak memory in bytes.
    pub memory_bytes: u64,
    /// Number of times that its processes gave up the processor to wait.
    pub voluntary_switches: u64,
    /// Number of times that the processor was given to another process although they could go on.
    pub involuntary_switches: u64,
    /// What else happened on its processors; absent if it was not measured, as for commands that no `measure` repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interference: Option<Interference>,
}

/// One measured run of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct MeasuredRun {
    /// What the run used.
    #[serde(flatten)]
    pub figures: RunFigures,
    /// Id of the executor that ran it; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// Times that the program itself reported in this run, in microseconds; at most the first 1000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reported_us: Vec<u64>,
    /// What disturbed the run; empty if nothing did that is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbed_by: Vec<Disturbance>,
}

/// Summary of a sample of times, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct TimeSummary {
    /// Number of times in the sample, at least 1.
    pub n: u64,
    /// The smallest of the times.
    pub min_us: u64,
    /// The largest of the times.
    pub max_us: u64,
    /// The median: of an even number of times, the mean of the two in the middle.
    pub median_us: u64,
    /// The mean of all times.
    pub mean_us: u64,
    /// The mean without the fastest tenth and the slowest tenth of the runs.
    pub trimmed_mean_us: u64,
    /// The standard deviation of the sample; 0 for a single time.
    pub standard_deviation_us: u64,
    /// The median of the distances from the median.
    pub mad_us: u64,
    /// Lower end of the 95 % interval of the median, by 1000 bootstrap resamples.
    pub low_us: u64,
    /// Upper end of the 95 % interval of the median.
    pub high_us: u64,
}

/// Why a measurement has the number of runs that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MeasurementState {
    /// More runs follow: the result is preliminary, and status, score and times may change.
    Preliminary,
    /// The requested number of runs was made.
    AllRuns,
    /// The interval of the median CPU time became as narrow as requested.
    Narrow,
    /// The maximum number of runs was made, and the interval is still wider than requested.
    StillWide,
    /// More than `max_disturbed` runs were disturbed: the summary contains disturbed runs too.
    Disturbed,
    /// A run failed, with a wrong exit code for example; no further one was made.
    RunFailed,
    /// The judge rejected the output of a run; no further one was made.
    Rejected,
    /// A run exceeded a limit, for times by more than `limit_factor`; no further one was made.
    FarOverLimit,
}

/// The measurement of a task: its runs, and what they used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Measurement {
    /// Why there are this many runs, or that more follow.
    pub state: MeasurementState,
    /// Summary of the CPU times of the runs that count.
    pub cpu: TimeSummary,
    /// Summary of the wall-clock run times of the runs that count.
    pub wall: TimeSummary,
    /// Largest peak memory of a run that counts, in bytes.
    pub memory_bytes: u64,
    /// Sum of the voluntary context switches of the runs that count.
    pub voluntary_switches: u64,
    /// Sum of the involuntary context switches of the runs that count.
    pub involuntary_switches: u64,
    /// Number of runs before the first measured one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub warmup: u32,
    /// Number of measured runs that something disturbed. They are left out of the summaries, unless `state` is `disturbed`,
    /// `max_disturbed` is 0, or all runs were disturbed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub disturbed: u32,
    /// The measured runs in their order, with the disturbed ones. Only the file with the reports of all tasks has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<MeasuredRun>,
}

impl Measurement {
    /// The sum of the CPU times of the runs that count, in microseconds: the mean times their number.
    pub fn total_cpu_us(&self) -> u64 {
        self.cpu.mean_us.saturating_mul(self.cpu.n)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
