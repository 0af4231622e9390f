//! What was needed lately.

use std::{collections::VecDeque, time::Duration};

use model::Millis;

/// What was needed is remembered in so many steps of the window.
const STEPS: u32 = 32;
/// Longer than this part of the window without a look, and nothing is known of what was needed.
const GAP: u32 = 2;

/// The most that was needed in a window of time.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Window {
    /// What was needed when, each less than the one before.
    needed: VecDeque<(Millis, u64)>,
    /// Since when it is looked at without a gap.
    since: Option<Millis>,
    at: Millis,
}

impl Window {
    /// So many are needed now.
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
        // What comes right after more says little more: it is counted when that is too old.
        let is_step = self.needed.back().is_none_or(|(at, _)| now.since(*at) >= window / STEPS);
        if is_step {
            self.needed.push_back((now, needed));
        }
    }

    /// The most that was needed in the window until now; `None` until all of it was seen.
    pub(super) fn most(&self, window: Duration, now: Millis) -> Option<u64> {
        let seen = self.since.is_some_and(|since| now.since(since) >= window);
        seen.then(|| self.needed.front().map(|(_, needed)| *needed)).flatten()
    }
}
