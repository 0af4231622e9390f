//! Forebay in virtual time: the decisions of `policy`, without the rest of the farm.
//!
//! [`run`] takes a quota scenario through the governor, the allowances and Algorithm 1 exactly as the services do,
//! and records the result; [`plot_quota`] draws it. [`compare_sizes`] runs a workload of actions once with the sizes
//! that clients declare and once with learned sizes. Equal scenarios give equal bytes.

mod builds;
mod estimates;
mod farm;
mod intervals;
mod measure;
mod plot;
pub mod queues;
mod quota_run;
mod random;
mod scaling;
mod scenario;
mod series;
mod sizing;
mod statistics;

pub use estimates::{
    EstimateFigures, EstimateItem, EstimateScenario, EstimateTrace, EstimatedBy, Habits, compare_estimates,
    read_estimate_items,
};
pub use intervals::{IntervalChart, IntervalRow, plot_intervals};
pub use measure::{GroupPhase, QuotaMetrics};
pub use plot::{plot_lateness, plot_makespans, plot_quota, plot_scaling, plot_waits};
pub use quota_run::{QuotaRun, run};
pub use scaling::{
    Autoscale, InvalidScaling, Pattern, PoolSize, ScalingFigures, ScalingItem, ScalingRun, ScalingScenario,
    read_scaling_items, scale,
};
pub use scenario::{BuildMix, Estimator, InvalidScenario, Load, QuotaGroup, QuotaPhase, QuotaScenario};
pub use series::GroupSeries;
pub use sizing::{SizingFigures, SizingRun, SizingScenario, compare_sizes};

#[cfg(test)]
mod tests;
