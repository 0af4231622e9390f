//! How pools are scaled.

use serde::{Deserialize, Serialize};

/// How the number of a pool's processes follows the work: its bounds, and how patiently.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolScaling {
    /// There are always so many processes.
    pub min: u16,
    /// There are never more.
    pub max: u16,
    /// Seconds within which what waits should start.
    pub target_wait_seconds: f64,
    /// What a process costs an hour, in any money.
    pub cost_per_process_hour: f64,
    /// What the pool may cost an hour, in the same money. Absent: whatever `max` costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_per_hour: Option<f64>,
    /// Seconds from asking for a process to its taking work.
    pub start_up_seconds: f64,
    /// Seconds that fewer processes must have been enough before some go: 0, or four ticks at least.
    pub scale_in_after_seconds: f64,
    /// Seconds after a change in which no process goes.
    pub cooldown_seconds: f64,
    /// The most that go at once, percent of those there are, from 1 to 100; one at least.
    pub scale_in_percent: u8,
    /// As many too many are not worth a change, percent of those there are. Down to `min` all go.
    pub tolerance_percent: u8,
    /// Seconds over which arrivals are averaged.
    pub rate_window_seconds: f64,
}

impl Default for PoolScaling {
    /// As the planner has it.
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
