//! Estimates the rate at which items arrive.

use std::time::Duration;

use model::Millis;

use super::PlannerSettings;

/// Length of the short average, as a fraction of the configured window.
const SHORT: f64 = 0.2;
/// Minimum length of the short average, as a multiple of the run time of an item; the long average is at least twice as
/// long. A batch that arrives at once then counts as the load of half of its items.
const ITEMS: f64 = 2.0;
/// The short average is used if it exceeds the long one by this multiple of its random deviation.
const SIGNIFICANT: f64 = 3.0;

/// Exponentially decaying averages of arrivals per second.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Rate {
    long: f64,
    short: f64,
    /// Length of the short average in seconds.
    short_seconds: f64,
    at: Option<Millis>,
}

impl Rate {
    /// Adds `arrived` items since the previous call.
    pub(super) fn observe(
        &mut self,
        arrived: u64,
        service: Duration,
        settings: &PlannerSettings,
        now: Millis,
    ) {
        let service = service.as_secs_f64();
        let window = settings.rate_window.as_secs_f64();
        let long_seconds = window.max(2.0 * ITEMS * service).max(1.0);
        self.short_seconds = (SHORT * window).max(ITEMS * service).max(1.0);
        let elapsed = self.at.map_or(0.0, |at| now.since(at).as_secs_f64());
        self.at = Some(now);
        for (rate, seconds) in [(&mut self.long, long_seconds), (&mut self.short, self.short_seconds)] {
            *rate = *rate * (-elapsed / seconds).exp() + arrived as f64 / seconds;
        }
    }

    /// The long average, or the short one if it is significantly higher.
    pub(super) fn per_second(&self) -> f64 {
        let seconds = self.short_seconds.max(1.0);
        // Standard deviation of the decaying average for random arrivals at the long-term rate.
        let chance = (self.long / (2.0 * seconds)).sqrt() + 1.0 / seconds;
        if self.short > self.long + SIGNIFICANT * chance { self.short } else { self.long }
    }
}
