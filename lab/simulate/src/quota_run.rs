//! Simulates a quota scenario.

use serde::{Deserialize, Serialize};

use crate::{
    farm,
    measure::{self, QuotaMetrics},
    scenario::{InvalidScenario, QuotaScenario},
    series::GroupSeries,
};

/// Result of a simulated quota scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuotaRun {
    pub scenario: QuotaScenario,
    /// Series of each group, in the order of the scenario.
    pub groups: Vec<GroupSeries>,
    /// Metrics of the whole run.
    pub metrics: QuotaMetrics,
}

/// Simulates the quota scenario `scenario`.
pub fn run(scenario: &QuotaScenario) -> Result<QuotaRun, InvalidScenario> {
    scenario.check()?;
    let recorded = farm::simulate(scenario);
    let metrics = measure::measure(scenario, &recorded);
    Ok(QuotaRun { scenario: scenario.clone(), groups: recorded.groups, metrics })
}
