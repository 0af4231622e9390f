//! How often items arrive.

use std::time::Duration;

use model::Millis;

use super::AutoscaleSettings;

/// The short average is over so much of the window that is asked for.
const SHORT: f64 = 0.2;
/// It is over so many times what an item takes at least, the long one over twice as many: what arrives at once is then taken
/// for the load of half as many.
const ITEMS: f64 = 2.0;
/// The short average is believed when it is above the long one by so many times what chance makes of it.
const SIGNIFICANT: f64 = 3.0;

/// Averages of what arrives a second, that fade.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Rate {
    long: f64,
    short: f64,
    /// Over how many seconds the short one is.
    short_seconds: f64,
    at: Option<Millis>,
}

impl Rate {
    /// So many arrived since the last time.
    pub(super) fn observe(
        &mut self,
        arrived: u64,
        service: Duration,
        settings: &AutoscaleSettings,
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

    /// The long average; the short one where it is above it by more than chance.
    pub(super) fn per_second(&self) -> f64 {
        let seconds = self.short_seconds.max(1.0);
        // Of so many that arrived by chance, the fading average differs by this much.
        let chance = (self.long / (2.0 * seconds)).sqrt() + 1.0 / seconds;
        if self.short > self.long + SIGNIFICANT * chance { self.short } else { self.long }
    }
}
