//! A pool whose size the planner of `policy::autoscale` chooses, in virtual time (section 5.4.4 of the thesis).
//!
//! Items wait in one queue and start in the order of their arrival wherever a slot is free; the planner looks at the pool
//! every few seconds. What it asks for takes work after the time to start up; what it gives back runs what it has to the
//! end. Beside it the same items go through two pools of a fixed size: the largest that the settings allow, and one of the
//! size that the scaled pool had on the average, which costs about the same.

mod arrivals;
mod farm;
mod plot;
mod pool;
mod trace;

use policy::autoscale::{AutoscaleSettings, InvalidAutoscaleSettings};
use serde::{Deserialize, Serialize};

pub use arrivals::{Pattern, ScalingItem};
use farm::Size;
pub use plot::plot_scaling;
pub use trace::read_scaling_items;

use crate::{InvalidScenario, scenario::within};

/// A pool, its settings and what arrives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScalingScenario {
    /// Names the run: equal seeds give equal runs.
    pub seed: u64,
    /// How items arrive.
    pub pattern: Pattern,
    /// For so long they do.
    pub hours: f64,
    /// Items an hour, on the average.
    pub per_hour: f64,
    /// How long an item takes, on the average, and sigma of the log-normal distribution.
    pub service_seconds: f64,
    /// See there.
    pub service_sigma: f64,
    /// Sigma of the log-normal distribution by which estimates are off.
    pub estimate_sigma: f64,
    /// Items that a process runs at a time.
    pub slots: u32,
    /// Seconds between looks of the planner.
    pub tick_seconds: f64,
    /// Its settings.
    pub autoscale: Autoscale,
}

/// How [`AutoscaleSettings`] are written. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Autoscale {
    /// `target_wait`.
    pub target_wait_seconds: f64,
    /// `min`.
    pub min: u64,
    /// `max`.
    pub max: u64,
    /// `cost_per_process_hour`.
    pub cost_per_process_hour: f64,
    /// `budget_per_hour`.
    pub budget_per_hour: Option<f64>,
    /// `start_up`.
    pub start_up_seconds: f64,
    /// `scale_in_after`.
    pub scale_in_after_seconds: f64,
    /// `cooldown`.
    pub cooldown_seconds: f64,
    /// `scale_in_percent`.
    pub scale_in_percent: u64,
    /// `tolerance_percent`.
    pub tolerance_percent: u64,
    /// `rate_window`.
    pub rate_window_seconds: f64,
}

/// What became of the items, by each way to size the pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScalingRun {
    /// What was simulated.
    pub scenario: ScalingScenario,
    /// Sized by the planner, as large as allowed all the time, and of the planner's mean size all the time.
    pub figures: Vec<ScalingFigures>,
    /// How many processes took work, every minute: of the first of them.
    pub processes: Vec<u64>,
    /// How many would have been needed then to run at once all that was there.
    pub wanted: Vec<u64>,
}

/// What became of the items in one pool.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScalingFigures {
    /// How it was sized.
    pub sized: PoolSize,
    /// Items that ended.
    pub ended: u64,
    /// Items whose process went before they ended. There should be none.
    pub killed: u64,
    /// Seconds waited, on the average.
    pub wait_mean_s: f64,
    /// What nineteen of twenty waited at most.
    pub wait_p95_s: f64,
    /// The longest wait.
    pub wait_max_s: f64,
    /// Percent that started within the target.
    pub in_time_pct: f64,
    /// Processes that took work, on the average over time.
    pub processes_mean: f64,
    /// The most there were.
    pub processes_max: u64,
    /// Process-seconds that lacked for all that was there to run at once.
    pub under_provisioned_s: f64,
    /// Process-seconds of processes that were there and had nothing to run. Those that start are only paid for.
    pub over_provisioned_s: f64,
    /// Process-hours that were paid for: starting, working, idle and draining.
    pub process_hours: f64,
    /// What they cost.
    pub cost: f64,
    /// How often the planner changed its mind about the size.
    pub changes: u64,
    /// How often more followed on fewer, or fewer on more.
    pub turns: u64,
}

/// How a pool is sized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolSize {
    /// By the planner.
    Planned,
    /// As large as the settings allow.
    FixedMax,
    /// As large as the planned pool was on the average, rounded up.
    FixedMean,
}

/// Why a pool cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidScaling {
    /// A number.
    #[error(transparent)]
    Scenario(#[from] InvalidScenario),
    /// A setting of the planner.
    #[error(transparent)]
    Settings(#[from] InvalidAutoscaleSettings),
    /// A planner that looks too seldom.
    #[error(
        "tick_seconds is {tick_seconds}, more than a quarter of scale_in_after_seconds ({scale_in_after_seconds}): \
         the planner would see too little of that time ever to remove a process"
    )]
    Tick {
        /// Between two looks.
        tick_seconds: f64,
        /// For so long fewer must have been enough.
        scale_in_after_seconds: f64,
    },
    /// More work than the pool will ever do.
    #[error(
        "{left} of {items} items still wait or run {days} days after the scenario's end; \
         a larger max, more slots or less work is needed"
    )]
    Endless {
        /// So many have not ended.
        left: usize,
        /// So many there are.
        items: usize,
        /// So long after the end of the scenario.
        days: u64,
    },
}

impl Default for ScalingScenario {
    /// A day with a quiet night: at noon forty times as much work as at midnight.
    fn default() -> Self {
        Self {
            seed: 1,
            pattern: Pattern::Day,
            hours: 24.0,
            per_hour: 240.0,
            service_seconds: 120.0,
            service_sigma: 0.8,
            estimate_sigma: 0.3,
            slots: 1,
            tick_seconds: 5.0,
            autoscale: Autoscale { max: 40, start_up_seconds: 30.0, ..Autoscale::default() },
        }
    }
}

impl Default for Autoscale {
    fn default() -> Self {
        Self::from(&AutoscaleSettings::default())
    }
}

impl From<&AutoscaleSettings> for Autoscale {
    fn from(settings: &AutoscaleSettings) -> Self {
        Self {
            target_wait_seconds: settings.target_wait.as_secs_f64(),
            min: settings.min,
            max: settings.max,
            cost_per_process_hour: settings.cost_per_process_hour,
            budget_per_hour: settings.budget_per_hour,
            start_up_seconds: settings.start_up.as_secs_f64(),
            scale_in_after_seconds: settings.scale_in_after.as_secs_f64(),
            cooldown_seconds: settings.cooldown.as_secs_f64(),
            scale_in_percent: settings.scale_in_percent,
            tolerance_percent: settings.tolerance_percent,
            rate_window_seconds: settings.rate_window.as_secs_f64(),
        }
    }
}

impl Autoscale {
    fn settings(&self) -> Result<AutoscaleSettings, InvalidScaling> {
        let span = |name, seconds: f64| {
            within(name, seconds, 0.0, 1e6)?;
            Ok::<_, InvalidScenario>(std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default())
        };
        let settings = AutoscaleSettings {
            target_wait: span("target_wait_seconds", self.target_wait_seconds)?,
            min: self.min,
            max: self.max,
            cost_per_process_hour: self.cost_per_process_hour,
            budget_per_hour: self.budget_per_hour,
            start_up: span("start_up_seconds", self.start_up_seconds)?,
            scale_in_after: span("scale_in_after_seconds", self.scale_in_after_seconds)?,
            cooldown: span("cooldown_seconds", self.cooldown_seconds)?,
            scale_in_percent: self.scale_in_percent,
            tolerance_percent: self.tolerance_percent,
            rate_window: span("rate_window_seconds", self.rate_window_seconds)?,
        };
        settings.check()?;
        Ok(settings)
    }
}

impl ScalingScenario {
    /// Refuses what cannot be simulated, or would take for ever.
    pub fn check(&self) -> Result<(), InvalidScaling> {
        within("hours", self.hours, 0.01, 1000.0)?;
        within("per_hour", self.per_hour, 0.0, 1e6)?;
        within("items", self.hours * self.per_hour, 0.0, 2e6)?;
        within("service_seconds", self.service_seconds, 0.001, 1e5)?;
        within("service_sigma", self.service_sigma, 0.0, 3.0)?;
        within("estimate_sigma", self.estimate_sigma, 0.0, 3.0)?;
        within("slots", f64::from(self.slots), 1.0, 1000.0)?;
        within("max", self.autoscale.max as f64, 1.0, 1e4)?;
        within("tick_seconds", self.tick_seconds, 0.1, 3600.0)?;
        self.autoscale.settings()?;
        self.check_tick()
    }

    /// The planner removes nothing before it has seen all of `scale_in_after`, and forgets what it saw when it was away for
    /// long.
    fn check_tick(&self) -> Result<(), InvalidScaling> {
        let (tick_seconds, scale_in_after_seconds) =
            (self.tick_seconds, self.autoscale.scale_in_after_seconds);
        if scale_in_after_seconds > 0.0 && tick_seconds > scale_in_after_seconds / 4.0 {
            return Err(InvalidScaling::Tick { tick_seconds, scale_in_after_seconds });
        }
        Ok(())
    }
}

/// Simulates `scenario`: with what its pattern makes, or with `items`, in the order of their arrival, instead.
pub fn scale(
    scenario: &ScalingScenario,
    items: Option<&[ScalingItem]>,
) -> Result<ScalingRun, InvalidScaling> {
    scenario.check()?;
    let settings = scenario.autoscale.settings()?;
    let made = if items.is_none() { arrivals::items(scenario) } else { Vec::new() };
    let items = items.unwrap_or(&made);
    let run = |size| farm::simulate(scenario, &settings, items, size);
    let planned = run(Size::Planned)?;
    let mean = (1..=settings.max).find(|count| *count as f64 >= planned.figures.processes_mean);
    let fixed_max = run(Size::Fixed(PoolSize::FixedMax, settings.max))?;
    let fixed_mean = run(Size::Fixed(PoolSize::FixedMean, mean.unwrap_or(settings.max)))?;
    Ok(ScalingRun {
        scenario: scenario.clone(),
        figures: [&planned, &fixed_max, &fixed_mean].map(|done| done.figures).to_vec(),
        processes: planned.processes,
        wanted: planned.wanted,
    })
}

#[cfg(test)]
mod tests;
