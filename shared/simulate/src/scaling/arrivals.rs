//! What arrives at a pool.

use std::f64::consts::TAU;

use policy::Random;
use serde::{Deserialize, Serialize};

use super::ScalingScenario;
use crate::{
    builds::millis,
    drawn::{exponential, log_normal, normal},
};

const HOUR: f64 = 3600.0;
/// Of the mean of a day, by how much noon is above and midnight below it.
const SWING: f64 = 39.0 / 41.0;

/// How items arrive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// By chance, always as many.
    Steady,
    /// By chance, by noon forty times as many as by midnight; the first hour is that after midnight.
    Day,
    /// So many at once, as often as the number of items an hour says.
    Bursts(u32),
}

/// One item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScalingItem {
    /// When it arrives, milliseconds from the beginning.
    pub arrival_ms: u64,
    /// How long it takes.
    pub duration_ms: u64,
    /// How long it is expected to take.
    pub estimate_ms: u64,
}

/// What the scenario's pattern makes.
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
        // More than there are at any time, of which a part is left out.
        if scenario.pattern == Pattern::Day && random.unit() * peak > 1.0 - SWING * (TAU * hours / 24.0).cos()
        {
            continue;
        }
        items.extend((0..at_once).map(|_| item(scenario, hours, &mut random)));
    }
}

fn item(scenario: &ScalingScenario, hours: f64, random: &mut Random) -> ScalingItem {
    let sigma = scenario.service_sigma;
    // With this median the mean is as asked for.
    let seconds = scenario.service_seconds * normal(random, -sigma * sigma / 2.0, sigma).exp();
    let estimate = seconds * log_normal(random, scenario.estimate_sigma);
    ScalingItem {
        arrival_ms: millis(hours * HOUR),
        duration_ms: millis(seconds),
        estimate_ms: millis(estimate),
    }
}
