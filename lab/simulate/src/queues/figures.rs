//! Figures of a workload and a policy, over many seeds.

use replay::{Lateness, QueueOutcome};
use serde::{Deserialize, Serialize};

use super::{batch::Tally, name::Reading};
use crate::statistics::{mean, rounded};

/// Mean figures over all seeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueueFigures {
    /// Name of the workload's stream.
    pub workload: String,
    /// Name of the policy in the notation of the thesis.
    pub policy: String,
    /// Which of the two experiments of the thesis was reproduced.
    pub reading: Reading,
    /// Number of seeds in the mean.
    pub seeds: u64,
    /// Percentage of jobs on time.
    pub on_time_pct: f64,
    /// Percentage of jobs delayed.
    pub delayed_pct: f64,
    /// Percentage of jobs late.
    pub late_pct: f64,
    /// Percentage of jobs extremely late.
    pub extremely_late_pct: f64,
    /// Wait relative to duration: the median.
    pub rel_wait_p50: f64,
    /// Wait relative to duration: the 95th percentile.
    pub rel_wait_p95: f64,
    /// Wait relative to duration: the 99th percentile.
    pub rel_wait_p99: f64,
    /// Seconds from the beginning until the last job ended.
    pub makespan_s: f64,
}

/// Computes the figures of `tally`.
pub fn figures(tally: &Tally, reading: Reading) -> QueueFigures {
    let seeds = tally.outcomes.len() as u64;
    let mean = |value: &dyn Fn(&QueueOutcome) -> f64| {
        // More digits would be noise.
        rounded(mean(tally.outcomes.iter().map(value)), 4)
    };
    let share = |class| mean(&|outcome| outcome.percentage(class));
    let wait = |at: usize| {
        mean(&|outcome| {
            let Some(wait) = outcome.relative_wait.get(at) else {
                unreachable!("percentile {at} is missing");
            };
            *wait
        })
    };
    QueueFigures {
        workload: tally.workload.clone(),
        policy: tally.policy.to_string(),
        reading,
        seeds,
        on_time_pct: share(Lateness::OnTime),
        delayed_pct: share(Lateness::Delayed),
        late_pct: share(Lateness::Late),
        extremely_late_pct: share(Lateness::ExtremelyLate),
        rel_wait_p50: wait(0),
        rel_wait_p95: wait(1),
        rel_wait_p99: wait(2),
        makespan_s: mean(&|outcome| outcome.makespan_ms as f64 / 1000.0),
    }
}
