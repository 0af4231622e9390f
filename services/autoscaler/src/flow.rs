//! Counts arrivals and ends since a position in the log: every replica counts the same.

use std::{collections::VecDeque, time::Duration};

use model::Sequence;

/// Maximum number of entries: if no decision was made for long, the latest ones suffice.
const ENTRIES_MAX: usize = 100_000;
/// Number of recent ends that dominate the mean.
const RECENT_ENDS: f64 = 32.0;

/// Arrivals and ends since the last decision.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    joined: VecDeque<Sequence>,
    ended: VecDeque<(Sequence, Duration)>,
}

impl Flow {
    /// Records an arrival in the queue.
    pub(crate) fn join(&mut self, at: Sequence) {
        push(&mut self.joined, at);
    }

    /// Records an end and its duration.
    pub(crate) fn end(&mut self, at: Sequence, took: Duration) {
        push(&mut self.ended, (at, took));
    }

    /// Drops what a decision that read up to `upto` has counted.
    pub(crate) fn forget(&mut self, upto: Sequence) {
        let joined = self.joined.partition_point(|at| *at <= upto);
        self.joined.drain(..joined);
        let ended = self.ended.partition_point(|(at, _)| *at <= upto);
        self.ended.drain(..ended);
    }

    /// Number of arrivals since the last decision.
    pub(crate) fn joined(&self) -> u64 {
        self.joined.len() as u64
    }

    /// Mean duration of recent ends; `before` is the mean at the previous decision.
    pub(crate) fn service(&self, before: Duration) -> Duration {
        self.ended.iter().fold(before, |mean, (_, took)| {
            if mean.is_zero() {
                *took
            } else {
                mean.mul_f64(1.0 - 1.0 / RECENT_ENDS) + took.div_f64(RECENT_ENDS)
            }
        })
    }
}

fn push<T>(all: &mut VecDeque<T>, one: T) {
    if all.len() == ENTRIES_MAX {
        all.pop_front();
    }
    all.push_back(one);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_a_decision_counted_is_not_counted_again() {
        let mut flow = Flow::default();
        for at in [3, 5, 8] {
            flow.join(Sequence(at));
        }
        flow.forget(Sequence(5));
        assert_eq!(flow.joined(), 1);
        flow.forget(Sequence(5));
        assert_eq!(flow.joined(), 1);
    }

    #[test]
    fn the_average_follows_what_ends_and_forgets_what_ended_long_ago() {
        let mut flow = Flow::default();
        assert_eq!(flow.service(seconds(7)), seconds(7), "no new ends");
        flow.end(Sequence(1), seconds(10));
        assert_eq!(flow.service(Duration::ZERO), seconds(10), "the first end determines the mean");
        for at in 2..200 {
            flow.end(Sequence(at), seconds(2));
        }
        let mean = flow.service(Duration::ZERO).as_secs_f64();
        assert!((2.0..2.1).contains(&mean), "{mean}");
        flow.forget(Sequence(500));
        assert_eq!(flow.service(seconds(4)), seconds(4));
    }
}
