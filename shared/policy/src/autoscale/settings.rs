//! Limits and timing of the planner.

use std::time::Duration;

/// Settings of an autoscaled pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlannerSettings {
    /// Target waiting time in the queue, which 95 % of the items should not exceed.
    pub target_wait: Duration,
    /// Minimum number of processes.
    pub min: u64,
    /// Maximum number of processes.
    pub max: u64,
    /// Cost of a process per hour, in any currency.
    pub cost_per_process_hour: f64,
    /// Maximum cost of the pool per hour, in the same currency; at least the cost of `min` processes. `None` means
    /// limited only by `max`.
    pub budget_per_hour: Option<f64>,
    /// Time from the request for a process until it accepts work.
    pub start_up: Duration,
    /// How long fewer processes must have been enough before any are removed.
    pub scale_in_after: Duration,
    /// Minimum time after the last change before processes are removed.
    pub cooldown: Duration,
    /// Maximum number of processes removed at once, in percent of the present number; at least one process.
    pub scale_in_percent: u64,
    /// Surplus of processes that is tolerated, in percent of the present number. Down to `min`, all surplus is removed.
    pub tolerance_percent: u64,
    /// Window over which arrivals are averaged; at least four times the run time of an item, so that a batch of
    /// arrivals is not mistaken for a constant rate.
    pub rate_window: Duration,
}

/// An autoscale setting is out of range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("autoscaling setting {name} is {value}: expected a number from {least} to {most}")]
pub struct InvalidPlannerSettings {
    /// Name of the field.
    pub name: &'static str,
    /// Its value; times are in seconds.
    pub value: f64,
    /// Smallest value that is accepted.
    pub least: f64,
    /// Largest value that is accepted.
    pub most: f64,
}

impl Default for PlannerSettings {
    fn default() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        Self {
            target_wait: minutes(1),
            min: 1,
            max: 10,
            cost_per_process_hour: 1.0,
            budget_per_hour: None,
            start_up: Duration::from_secs(5),
            scale_in_after: minutes(10),
            cooldown: minutes(1),
            scale_in_percent: 50,
            tolerance_percent: 20,
            rate_window: minutes(10),
        }
    }
}

impl PlannerSettings {
    /// Rejects values that are NaN or out of range, and contradictory limits.
    pub fn check(&self) -> Result<(), InvalidPlannerSettings> {
        let day = 86_400.0;
        let ranges = [
            ("target_wait", self.target_wait.as_secs_f64(), 0.1, day),
            ("max", self.max as f64, 1.0, 1e5),
            ("min", self.min as f64, 0.0, self.max as f64),
            ("cost_per_process_hour", self.cost_per_process_hour, 0.0, 1e9),
            ("start_up", self.start_up.as_secs_f64(), 0.0, day),
            ("scale_in_after", self.scale_in_after.as_secs_f64(), 0.0, day),
            ("cooldown", self.cooldown.as_secs_f64(), 0.0, day),
            ("scale_in_percent", self.scale_in_percent as f64, 1.0, 100.0),
            ("tolerance_percent", self.tolerance_percent as f64, 0.0, 99.0),
            ("rate_window", self.rate_window.as_secs_f64(), 1.0, day),
        ];
        let least_budget = self.min.max(1) as f64 * self.cost_per_process_hour;
        let budget = self.budget_per_hour.map(|budget| ("budget_per_hour", budget, least_budget, 1e15));
        for (name, value, least, most) in ranges.into_iter().chain(budget) {
            if !(least..=most).contains(&value) {
                return Err(InvalidPlannerSettings { name, value, least, most });
            }
        }
        Ok(())
    }

    /// Minimum number of processes, even if the settings contradict each other.
    pub(super) fn least(&self) -> u64 {
        self.min.min(self.most())
    }

    /// Maximum number of processes, by number and by budget.
    pub(super) fn most(&self) -> u64 {
        let Some(budget) = self.budget_per_hour else { return self.max };
        // Found by search instead of division and rounding: a budget for exactly 3 processes must not yield 2.999.
        let pays = |count: u64| count as f64 * self.cost_per_process_hour <= budget * (1.0 + 1e-9);
        let (mut low, mut high) = (0, self.max);
        while low < high {
            let middle = high - (high - low) / 2;
            if pays(middle) { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// Number of surplus processes that are tolerated.
    pub(super) fn tolerated(&self, has: u64) -> u64 {
        has.saturating_mul(self.tolerance_percent.min(100)) / 100
    }

    /// Maximum number of processes that may be removed at once.
    pub(super) fn step(&self, has: u64) -> u64 {
        (has.saturating_mul(self.scale_in_percent.min(100)) / 100).clamp(1, has.max(1))
    }
}
