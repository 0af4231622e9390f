//! Settings of autoscaled pools.

use serde::{Deserialize, Serialize};

/// Bounds and tuning of an autoscaled pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "the bounds of a pool, for example { min = 0, max = 4 }")]
pub struct PoolScaling {
    /// Minimum number of processes, at most `max`.
    pub min: u16,
    /// Maximum number of processes, at least 1.
    pub max: u16,
    /// Seconds within which waiting work should start.
    pub target_wait_seconds: f64,
    /// Cost of a process per hour, in any currency.
    pub cost_per_process_hour: f64,
    /// Maximum cost of the pool per hour, in the same currency. Absent: no limit below `max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_per_hour: Option<f64>,
    /// Seconds from requesting a process until it accepts work.
    pub start_up_seconds: f64,
    /// Seconds for which fewer processes must have been enough before some are stopped: 0, or at least four ticks.
    pub scale_in_after_seconds: f64,
    /// Seconds after a change during which no process is stopped.
    pub cooldown_seconds: f64,
    /// Percentage of processes that may be stopped at once, 1 to 100; at least one process.
    pub scale_in_percent: u8,
    /// Surplus that is tolerated, as a percentage of the processes, 0 to 99. If the target is `min`,
    /// all surplus is removed.
    pub tolerance_percent: u8,
    /// Seconds over which the arrival rate is averaged.
    pub rate_window_seconds: f64,
}

impl Default for PoolScaling {
    /// The defaults of the planner.
    fn default() -> Self {
        Self {
            min: 1,
            max: 10,
            target_wait_seconds: 60.0,
            cost_per_process_hour: 1.0,
            budget_per_hour: None,
            start_up_seconds: 5.0,
            scale_in_after_seconds: 600.0,
            cooldown_seconds: 60.0,
            scale_in_percent: 50,
            tolerance_percent: 20,
            rate_window_seconds: 600.0,
        }
    }
}
