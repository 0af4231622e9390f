//! Items that arrive at a pool.

use std::f64::consts::TAU;

use policy::Random;
use serde::{Deserialize, Serialize};

use super::ScalingScenario;
use crate::{
    random::{exponential, log_normal, normal},
    statistics::millis,
};

const HOUR: f64 = 3600.0;
/// Difference of noon and midnight from the mean of a day, as a share of the mean.
const SWING: f64 = 39.0 / 41.0;

/// Arrival pattern of items.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Random arrivals at a constant rate.
    Steady,
    /// Random arrivals, forty times as many at noon as at midnight; the first hour follows midnight.
    Day,
    /// Bursts of the given number of items, as many bursts as the number of items per hour requires.
    Bursts(u32),
}

/// An item of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScalingItem {
    /// Arrival in milliseconds from the beginning.
    pub arrival_ms: u64,
    /// Run time in milliseconds.
    pub duration_ms: u64,
    /// Estimated run time in milliseconds.
    pub estimate_ms: u64,
}

/// Generates the items of the scenario's pattern.
pub(super) fn items(scenario: &ScalingScenario) -> Vec<ScalingItem> {
    let mut random = Random::new(scenario.seed);
    let mut items = Vec::new();
    if scenario.per_hour <= 0.0 {
        return items;
    }
    let (at_once, rate, peak) = match scenario.pattern {
        Pattern::Steady => (1, scenario.per_hour, 1.0),
        Pattern::Day => (1, scenario.per_hour, 1.0 + SWING),
        Pattern::Bursts(size) => (size.max(1), scenario.per_hour / f64::from(size.max(1)), 1.0),
    };
    let mut hours = 0.0;
    loop {
        hours += match scenario.pattern {
            Pattern::Steady | Pattern::Day => exponential(&mut random, 1.0) / (rate * peak),
            Pattern::Bursts(_) => 1.0 / rate,
        };
        if hours > scenario.hours {
            return items;
        }
        // Draw at the highest rate of the day, and drop some of the arrivals.
        if scenario.pattern == Pattern::Day && random.unit() * peak > 1.0 - SWING * (TAU * hours / 24.0).cos()
        {
            continue;
        }
        items.extend((0..at_once).map(|_| item(scenario, hours, &mut random)));
    }
}

fn item(scenario: &ScalingScenario, hours: f64, random: &mut Random) -> ScalingItem {
    let sigma = scenario.service_sigma;
    // With this median, the mean equals the setting.
    let seconds = scenario.service_seconds * normal(random, -sigma * sigma / 2.0, sigma).exp();
    let estimate = seconds * log_normal(random, scenario.estimate_sigma);
    ScalingItem {
        arrival_ms: millis(hours * HOUR),
        duration_ms: millis(seconds),
        estimate_ms: millis(estimate),
    }
}
