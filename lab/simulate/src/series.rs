//! Recorded time series of a run.

use model::{Governed, Group};
use serde::{Deserialize, Serialize};

use crate::statistics::rounded;

/// Series of a group: one number per second, the first at second 0, in ESU with three decimals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupSeries {
    pub group: Group,
    /// Quota of the group.
    pub quota: f64,
    /// Usage at that second (process variable).
    pub pv: Vec<f64>,
    /// Set point at that second.
    pub sp: Vec<f64>,
    /// ESU that the governor wanted to start (manipulated variable).
    pub mv: Vec<f64>,
    /// Level of estimates in progress up to which builds may start.
    pub target: Vec<f64>,
    /// Sum of the estimates of the builds in progress.
    pub in_progress: Vec<f64>,
    /// Part of the set point that is other groups' quota.
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
        let rounded = |units| rounded(units, 3);
        self.pv.push(rounded(pv));
        self.in_progress.push(rounded(in_progress));
        self.sp.push(rounded(governed.sp.units()));
        self.mv.push(rounded(governed.mv.units()));
        self.target.push(rounded(governed.target.units()));
        self.borrowed.push(rounded(governed.borrowed.units()));
    }
}
