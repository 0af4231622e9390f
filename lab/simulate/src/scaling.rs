//! A pool whose size the planner of `policy::autoscale` chooses, in virtual time (section 5.4.4 of the thesis).
//!
//! Items wait in one queue and start in the order of their arrival wherever a slot is free; the planner runs every
//! few seconds. Processes that it adds accept work after the start-up time; processes that it removes finish their
//! running items. For comparison the same items go through two pools of a fixed size: the largest that the settings
//! allow, and one of the scaled pool's mean size, which costs about the same.

mod arrivals;
mod farm;
mod pool;
mod trace;

use policy::autoscale::{InvalidPlannerSettings, PlannerSettings};
use serde::{Deserialize, Serialize};

pub use arrivals::{Pattern, ScalingItem};
use farm::Size;
pub use trace::read_scaling_items;

use crate::{InvalidScenario, scenario::within};

/// A pool, its settings and the arriving work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScalingScenario {
    /// Seed of the run: equal seeds give equal runs.
    pub seed: u64,
    pub pattern: Pattern,
    /// Duration of the arrivals in hours.
    pub hours: f64,
    /// Mean number of items per hour.
    pub per_hour: f64,
    /// Mean run time of an item in seconds.
    pub service_seconds: f64,
    /// Sigma of the log-normal distribution of run times.
    pub service_sigma: f64,
    /// Sigma of the log-normal distribution of estimation errors.
    pub estimate_sigma: f64,
    /// Number of items that a process runs at a time.
    pub slots: u32,
    /// Seconds between two runs of the planner.
    pub tick_seconds: f64,
    /// Settings of the planner.
    pub autoscale: Autoscale,
}

/// Serialized form of [`PlannerSettings`]. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Autoscale {
    /// The setting `target_wait` in seconds.
    pub target_wait_seconds: f64,
    /// The setting `min`: minimum number of processes.
    pub min: u64,
    /// The setting `max`: maximum number of processes.
    pub max: u64,
    /// The setting `cost_per_process_hour`, in units of cost.
    pub cost_per_process_hour: f64,
    /// The setting `budget_per_hour`, in units of cost.
    pub budget_per_hour: Option<f64>,
    /// The setting `start_up` in seconds.
    pub start_up_seconds: f64,
    /// The setting `scale_in_after` in seconds.
    pub scale_in_after_seconds: f64,
    /// The setting `cooldown` in seconds.
    pub cooldown_seconds: f64,
    /// The setting `scale_in_percent`, in percent.
    pub scale_in_percent: u64,
    /// The setting `tolerance_percent`, in percent.
    pub tolerance_percent: u64,
    /// The setting `rate_window` in seconds.
    pub rate_window_seconds: f64,
}

/// Results for each way to size the pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScalingRun {
    pub scenario: ScalingScenario,
    /// Figures for the planner's size, for the maximum size, and for the planner's mean size.
    pub figures: Vec<ScalingFigures>,
    /// Number of processes that accept work in the planned pool, one value per minute.
    pub processes: Vec<u64>,
    /// Number of processes that would have been needed to run all items at once, one value per minute.
    pub wanted: Vec<u64>,
}

/// Figures of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScalingFigures {
    pub sized: PoolSize,
    /// Number of items that ended.
    pub ended: u64,
    /// Number of items whose process was removed before they ended. It should be 0.
    pub killed: u64,
    /// Mean wait in seconds.
    pub wait_mean_s: f64,
    /// 95th percentile of the waits in seconds.
    pub wait_p95_s: f64,
    /// Longest wait in seconds.
    pub wait_max_s: f64,
    /// Percentage of items that started within the target wait.
    pub in_time_pct: f64,
    /// Mean number of processes that accept work.
    pub processes_mean: f64,
    /// Largest number of processes that accept work.
    pub processes_max: u64,
    /// Process-seconds missing to run all present items at once.
    pub under_provisioned_s: f64,
    /// Process-seconds of idle processes that accept work. A starting process costs money but does not count here.
    pub over_provisioned_s: f64,
    /// Paid process-hours: starting, working, idle and draining.
    pub process_hours: f64,
    /// Cost of those process-hours.
    pub cost: f64,
    /// Number of changes of the planned size.
    pub changes: u64,
    /// Number of times that an increase followed a decrease, or the reverse.
    pub turns: u64,
}

/// How a pool is sized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolSize {
    /// The planner chooses the size.
    Planned,
    /// Always as large as the settings allow.
    FixedMax,
    /// Always the mean size of the planned pool, rounded up.
    FixedMean,
}

/// Reason why a pool cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidScaling {
    #[error(transparent)]
    Scenario(#[from] InvalidScenario),
    #[error(transparent)]
    Settings(#[from] InvalidPlannerSettings),
    /// The planner runs too rarely.
    #[error(
        "tick_seconds is {tick_seconds}, more than a quarter of scale_in_after_seconds ({scale_in_after_seconds}): \
         the planner would see too little of that time ever to remove a process"
    )]
    Tick { tick_seconds: f64, scale_in_after_seconds: f64 },
    /// The work exceeds the capacity of the pool.
    #[error(
        "{left} of {items} items still wait or run {days} days after the scenario's end; \
         raise max or slots, or reduce the work"
    )]
    Endless {
        left: usize,
        items: usize,
        /// Days since the end of the scenario.
        days: u64,
    },
}

impl Default for ScalingScenario {
    /// A day with a quiet night: forty times as much work at noon as at midnight.
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
        Self::from(&PlannerSettings::default())
    }
}

impl From<&PlannerSettings> for Autoscale {
    fn from(settings: &PlannerSettings) -> Self {
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
    fn settings(&self) -> Result<PlannerSettings, InvalidScaling> {
        let span = |name, seconds: f64| {
            within(name, seconds, 0.0, 1e6)?;
            Ok::<_, InvalidScenario>(std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default())
        };
        let settings = PlannerSettings {
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
    /// Refuses scenarios that are invalid or would run too long.
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

    /// The planner removes nothing before it has observed all of `scale_in_after`, and forgets its observations
    /// after a long pause.
    fn check_tick(&self) -> Result<(), InvalidScaling> {
        let (tick_seconds, scale_in_after_seconds) =
            (self.tick_seconds, self.autoscale.scale_in_after_seconds);
        if scale_in_after_seconds > 0.0 && tick_seconds > scale_in_after_seconds / 4.0 {
            return Err(InvalidScaling::Tick { tick_seconds, scale_in_after_seconds });
        }
        Ok(())
    }
}

/// Simulates `scenario` with the items of its pattern, or with `items` (in order of arrival) if given.
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
