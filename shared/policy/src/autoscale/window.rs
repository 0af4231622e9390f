//! Maximum number of processes needed recently.

use std::{collections::VecDeque, time::Duration};

use model::Millis;

/// Number of steps into which the window is divided.
const STEPS: u32 = 32;
/// Gaps between observations longer than the window divided by `GAP` reset what is known.
const GAP: u32 = 2;

/// The maximum number needed in a sliding window of time.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Window {
    /// Numbers needed with their times, each less than the previous one.
    needed: VecDeque<(Millis, u64)>,
    /// Start of the present period of observations without a gap.
    since: Option<Millis>,
    at: Millis,
}

impl Window {
    /// Adds the number needed now.
    pub(super) fn add(&mut self, needed: u64, window: Duration, now: Millis) {
        let is_gap = now < self.at || now.since(self.at) > window / GAP;
        if self.since.is_none() || is_gap {
            self.needed.clear();
            self.since = Some(now);
        }
        self.at = now;
        while self.needed.front().is_some_and(|(at, _)| now.since(*at) > window) {
            self.needed.pop_front();
        }
        while self.needed.back().is_some_and(|(_, less)| *less <= needed) {
            self.needed.pop_back();
        }
        // An observation soon after a larger one adds little, so it is not stored until a step has passed.
        let is_step = self.needed.back().is_none_or(|(at, _)| now.since(*at) >= window / STEPS);
        if is_step {
            self.needed.push_back((now, needed));
        }
    }

    /// The maximum needed in the window until now; `None` until the whole window was observed.
    pub(super) fn most(&self, window: Duration, now: Millis) -> Option<u64> {
        let seen = self.since.is_some_and(|since| now.since(since) >= window);
        seen.then(|| self.needed.front().map(|(_, needed)| *needed)).flatten()
    }
}
