//! What a run recorded.

use model::{Governed, Group};
use serde::{Deserialize, Serialize};

use crate::{QuotaMetrics, QuotaScenario};

/// A simulated scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuotaRun {
    /// What was simulated.
    pub scenario: QuotaScenario,
    /// What each group did, in the order of the scenario.
    pub groups: Vec<GroupSeries>,
    /// What it amounts to.
    pub metrics: QuotaMetrics,
}

/// What a group did: one number a second, the first at second 0. ESU, in thousandths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupSeries {
    /// The group.
    pub group: Group,
    /// Its own quota.
    pub quota: f64,
    /// In use at that second.
    pub pv: Vec<f64>,
    /// The set point.
    pub sp: Vec<f64>,
    /// What the governor wanted to have started.
    pub mv: Vec<f64>,
    /// The level up to which builds might be started.
    pub target: Vec<f64>,
    /// Sum of the estimates of the builds in progress.
    pub in_progress: Vec<f64>,
    /// Of the set point, what is other groups' quota.
    pub borrowed: Vec<f64>,
}

impl GroupSeries {
    pub(crate) fn new(group: Group, quota: f64) -> Self {
        let none = Vec::new;
        Self {
            group,
            quota,
            pv: none(),
            sp: none(),
            mv: none(),
            target: none(),
            in_progress: none(),
            borrowed: none(),
        }
    }

    pub(crate) fn record(&mut self, pv: f64, in_progress: f64, governed: &Governed) {
        let rounded = |units: f64| (units * 1000.0).round() / 1000.0;
        self.pv.push(rounded(pv));
        self.in_progress.push(rounded(in_progress));
        self.sp.push(rounded(governed.sp.units()));
        self.mv.push(rounded(governed.mv.units()));
        self.target.push(rounded(governed.target.units()));
        self.borrowed.push(rounded(governed.borrowed.units()));
    }
}
