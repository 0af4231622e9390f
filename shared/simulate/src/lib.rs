//! Forebay in virtual time: the decisions of `policy`, and nothing else of the farm.
//!
//! [`run`] takes a quota scenario through the governor, the allowances and Algorithm 1 exactly as the services do, and
//! records what came of it; [`plot`] draws it. [`compare_sizes`] takes a workload of actions through what their clients
//! declare and through what is learned of them. Equal scenarios give equal bytes.

mod builds;
mod drawn;
mod estimates;
mod farm;
mod measure;
mod plot;
pub mod queues;
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
pub use scaling::{
    Autoscale, InvalidScaling, Pattern, PoolSize, ScalingFigures, ScalingItem, ScalingRun, ScalingScenario,
    plot_scaling, read_scaling_items, scale,
};
pub use scenario::{BuildMix, Estimator, InvalidScenario, Load, QuotaGroup, QuotaPhase, QuotaScenario};
pub use series::{GroupSeries, QuotaRun};
pub use sizing::{SizingFigures, SizingRun, SizingScenario, compare_sizes};

/// Simulates `scenario`.
pub fn run(scenario: &QuotaScenario) -> Result<QuotaRun, InvalidScenario> {
    scenario.check()?;
    let recorded = farm::simulate(scenario);
    let metrics = measure::measure(scenario, &recorded);
    Ok(QuotaRun { scenario: scenario.clone(), groups: recorded.groups, metrics })
}

#[cfg(test)]
mod tests;
