//! What a pool has to do.

use std::{collections::BTreeSet, time::Duration};

use model::Sequence;

/// What waits and runs, and what came and went lately.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Work {
    /// What waits and could start with one process more.
    pub(crate) waiting: u64,
    /// What waits for something else.
    pub(crate) held_back: u64,
    pub(crate) running: u64,
    /// What `waiting` is expected to take.
    pub(crate) queued: Duration,
    pub(crate) oldest_wait: Duration,
    /// Joined the queue since the decision before.
    pub(crate) arrived: u64,
    /// How long one takes.
    pub(crate) service: Duration,
    /// The processes that run something, as far as the log tells.
    pub(crate) busy: BTreeSet<String>,
    /// Up to where the log was read.
    pub(crate) upto: Sequence,
}

impl Work {
    /// Whether there is none at all.
    pub(crate) fn is_none(&self) -> bool {
        self.waiting == 0 && self.held_back == 0 && self.running == 0
    }
}

/// What something takes of which nothing is known.
pub(crate) const UNKNOWN: Duration = Duration::from_secs(10);

/// Nothing is taken to take longer: sums of what waits stay far from where they overflow.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// What something takes that has no estimate of its own: as long as others took.
pub(crate) fn or_usual(expected: Option<Duration>, service: Duration) -> Duration {
    expected.unwrap_or(if service.is_zero() { UNKNOWN } else { service }).min(LONGEST)
}

/// A part of a sum.
pub(crate) fn share(sum: Duration, part: u64, of: u64) -> Duration {
    if of == 0 { Duration::ZERO } else { sum.mul_f64(part.min(of) as f64 / of as f64) }
}
