//! How fast actions come and go here: how many must be on their way so that no slot waits.

use std::time::{Duration, Instant};

/// Over how long completions are counted: older ones fade out.
const SPAN: Duration = Duration::from_millis(200);
/// From a free slot to the next action in it, when that has to be asked for first.
const BIND: Duration = Duration::from_millis(20);
/// How much the last fetch counts against those before.
const LATEST: f64 = 0.1;

/// Completions and fetches of late.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Completions, each less the longer ago.
    ended: f64,
    at: Instant,
    /// Seconds that it takes to fetch inputs from afar before a slot is needed.
    fetch_seconds: f64,
}

impl Pace {
    /// Nothing has ended yet.
    pub(crate) fn new(now: Instant) -> Self {
        Self { ended: 0.0, at: now, fetch_seconds: 0.0 }
    }

    /// An action has ended.
    pub(crate) fn ended(&mut self, now: Instant) {
        self.ended = self.faded(now) + 1.0;
        self.at = now;
    }

    /// Inputs were fetched in so much time.
    pub(crate) fn fetched(&mut self, took: Duration) {
        self.fetch_seconds += LATEST * (took.as_secs_f64() - self.fetch_seconds);
    }

    /// Actions to have in hand beyond those that run: by Little's law as many as end while one is asked for and
    /// fetched, at most `slots`. None while that is less than one: then each is bound as late as can be.
    pub(crate) fn ahead(&self, now: Instant, slots: u16) -> u16 {
        let rate = self.faded(now) / SPAN.as_secs_f64();
        let on_their_way = rate * (BIND.as_secs_f64() + self.fetch_seconds);
        if on_their_way < 1.0 {
            return 0;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most a u16, and not below 0"
        )]
        let ahead = on_their_way.ceil().min(f64::from(slots)) as u16;
        ahead
    }

    fn faded(&self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.at);
        self.ended * (-since.as_secs_f64() / SPAN.as_secs_f64()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many a second, for two seconds; and when the last was.
    fn steady(rate: u32) -> (Pace, Instant) {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        for _ in 0..rate * 2 {
            now += Duration::from_secs(1) / rate;
            pace.ended(now);
        }
        (pace, now)
    }

    #[test]
    fn as_many_are_ahead_as_end_in_the_time_that_it_takes_to_ask() {
        let (pace, now) = steady(400);
        assert!((8..=9).contains(&pace.ahead(now, 16)), "{pace:?}");
        let (pace, now) = steady(3000);
        assert_eq!(pace.ahead(now, 16), 16);
    }

    #[test]
    fn long_actions_are_bound_late() {
        let (pace, now) = steady(30);
        assert_eq!(pace.ahead(now, 16), 0);
        let (pace, now) = steady(1000);
        assert_eq!(pace.ahead(now + Duration::from_secs(1), 16), 0);
    }

    #[test]
    fn inputs_from_afar_are_fetched_in_time() {
        let (mut pace, now) = steady(30);
        for _ in 0..100 {
            pace.fetched(Duration::from_millis(100));
        }
        assert!((3..=5).contains(&pace.ahead(now, 16)), "{pace:?}");
    }
}
