//! Forebay in virtual time: the decisions of `policy`, without the rest of the farm.
//!
//! [`run`] takes a quota scenario through the governor, the allowances and Algorithm 1 exactly as the services do,
//! and records the result; [`plot`] draws it. [`compare_sizes`] runs a workload of actions once with the sizes that
//! clients declare and once with learned sizes. Equal scenarios give equal bytes.

mod builds;
mod drawn;
mod estimates;
mod farm;
mod measure;
mod plot;
pub mod queues;
mod quota_run;
mod scaling;
mod scenario;
mod series;
mod sizing;
mod svg;

pub use estimates::{
    EstimateFigures, EstimateItem, EstimateScenario, EstimateTrace, EstimatedBy, Habits, compare_estimates,
    read_estimate_items,
};
pub use measure::{GroupPhase, QuotaMetrics};
pub use plot::plot;
pub use quota_run::{QuotaRun, run};
pub use scaling::{
    Autoscale, InvalidScaling, Pattern, PoolSize, ScalingFigures, ScalingItem, ScalingRun, ScalingScenario,
    plot_scaling, read_scaling_items, scale,
};
pub use scenario::{BuildMix, Estimator, InvalidScenario, Load, QuotaGroup, QuotaPhase, QuotaScenario};
pub use series::GroupSeries;
pub use sizing::{SizingFigures, SizingRun, SizingScenario, compare_sizes};

#[cfg(test)]
mod tests;
