//! The bounds and patience of the planner.

use std::time::Duration;

/// How a pool is scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AutoscaleSettings {
    /// Nineteen of twenty items should start within this time of joining the queue.
    pub target_wait: Duration,
    /// There are always so many processes.
    pub min: u64,
    /// There are never more.
    pub max: u64,
    /// What a process costs an hour, in any money.
    pub cost_per_process_hour: f64,
    /// What the pool may cost an hour, in the same money: what `min` costs at least. `None`: whatever `max` costs.
    pub budget_per_hour: Option<f64>,
    /// From asking for a process to its taking work.
    pub start_up: Duration,
    /// Fewer processes must have been enough for so long before some go.
    pub scale_in_after: Duration,
    /// No process goes until so long after the last change.
    pub cooldown: Duration,
    /// The most that go at once, percent of those there are; one at least.
    pub scale_in_percent: u64,
    /// As many too many are not worth a change, percent of those there are. Down to `min` all go.
    pub tolerance_percent: u64,
    /// Over so long arrivals are averaged; over four times what an item takes if that is longer, so that what arrives at once
    /// is not taken for what arrives all the time.
    pub rate_window: Duration,
}

/// Why settings of the planner cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{name} of autoscaling is {value}: a number from {least} to {most} is expected")]
pub struct InvalidAutoscaleSettings {
    /// Which field.
    pub name: &'static str,
    /// Its value; of times, in seconds.
    pub value: f64,
    /// The smallest that is accepted.
    pub least: f64,
    /// The largest that is accepted.
    pub most: f64,
}

impl Default for AutoscaleSettings {
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

impl AutoscaleSettings {
    /// Refuses what is no number or out of range, and bounds that exclude each other.
    pub fn check(&self) -> Result<(), InvalidAutoscaleSettings> {
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
                return Err(InvalidAutoscaleSettings { name, value, least, most });
            }
        }
        Ok(())
    }

    /// The least that there are, whatever the settings contradict.
    pub(super) fn least(&self) -> u64 {
        self.min.min(self.most())
    }

    /// The most that there may be, by number and by money.
    pub(super) fn most(&self) -> u64 {
        let Some(budget) = self.budget_per_hour else { return self.max };
        // Counted rather than divided and cut: a budget that pays for three must not pay for 2.999.
        let pays = |count: u64| count as f64 * self.cost_per_process_hour <= budget * (1.0 + 1e-9);
        let (mut low, mut high) = (0, self.max);
        while low < high {
            let middle = high - (high - low) / 2;
            if pays(middle) { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// So many too many are not worth a change.
    pub(super) fn tolerated(&self, has: u64) -> u64 {
        has.saturating_mul(self.tolerance_percent.min(100)) / 100
    }

    /// So many may go at once.
    pub(super) fn step(&self, has: u64) -> u64 {
        (has.saturating_mul(self.scale_in_percent.min(100)) / 100).clamp(1, has.max(1))
    }
}
