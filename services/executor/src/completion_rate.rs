//! The rate at which actions end, and how many to claim ahead so that no slot waits.

use std::time::{Duration, Instant};

use policy::actions::AHEAD_PER_SLOT;

/// Time constant of the completion rate: older completions count less.
const SPAN: Duration = Duration::from_millis(200);
/// Time from a free slot to the next action in it, if the action must be granted first.
const BIND: Duration = Duration::from_millis(20);
/// Weight of the latest fetch in the average.
const LATEST: f64 = 0.1;

/// Recent completions and fetches.
#[derive(Debug)]
pub(crate) struct CompletionRate {
    /// Number of completions, each weighted less with its age.
    ended: f64,
    at: Instant,
    /// Average duration of a remote input fetch before a slot is needed, in seconds.
    fetch_seconds: f64,
}

impl CompletionRate {
    /// Starts with no completions.
    pub(crate) fn new(now: Instant) -> Self {
        Self { ended: 0.0, at: now, fetch_seconds: 0.0 }
    }

    /// Records the end of an action.
    pub(crate) fn ended(&mut self, now: Instant) {
        self.ended = self.faded(now) + 1.0;
        self.at = now;
    }

    /// Records the duration of a fetch.
    pub(crate) fn fetched(&mut self, took: Duration) {
        self.fetch_seconds += LATEST * (took.as_secs_f64() - self.fetch_seconds);
    }

    /// Number of actions to hold beyond the running ones: by Little's law, as many as end while one is granted and
    /// fetched, at most [`AHEAD_PER_SLOT`] for each slot. 0 while that is less than one: then each action is
    /// assigned as late as possible.
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
        let ahead = on_their_way.ceil().min(f64::from(slots.saturating_mul(AHEAD_PER_SLOT))) as u16;
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

    /// Records `rate` completions per second for two seconds; also returns the time of the last one.
    fn steady(rate: u32) -> (CompletionRate, Instant) {
        let mut now = Instant::now();
        let mut pace = CompletionRate::new(now);
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
        assert!((58..=61).contains(&pace.ahead(now, 16)), "{pace:?}");
        assert_eq!(pace.ahead(now, 4), 16);
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
