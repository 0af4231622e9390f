//! The action cache: results of actions by digest.

mod memo;
mod purge;
mod results;

use crate::stats::Counter;
use memo::ActionMemo;

/// Finds results of actions, remembers the decoded ones, and counts the look-ups.
#[derive(Debug)]
pub(crate) struct ActionCache {
    memo: ActionMemo,
    hits: Counter,
    misses: Counter,
    incomplete: Counter,
}

impl ActionCache {
    pub(crate) fn new(memo_bytes: u64) -> Self {
        Self {
            memo: ActionMemo::new(memo_bytes),
            hits: Counter::default(),
            misses: Counter::default(),
            incomplete: Counter::default(),
        }
    }

    /// Results found complete, results not found, and results found incomplete.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        (self.hits.get(), self.misses.get(), self.incomplete.get())
    }
}
