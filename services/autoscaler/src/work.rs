//! The work of a pool.

use std::{collections::BTreeSet, time::Duration};

use model::Sequence;

/// Waiting and running work, and recent arrivals and ends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Work {
    /// Number of items that wait and could start with one more process.
    pub(crate) waiting: u64,
    /// Number of items that wait for something else.
    pub(crate) held_back: u64,
    pub(crate) running: u64,
    /// Total expected duration of `waiting`.
    pub(crate) queued: Duration,
    pub(crate) oldest_wait: Duration,
    /// Number of arrivals in the queue since the previous decision.
    pub(crate) arrived: u64,
    /// Mean duration of an item.
    pub(crate) service: Duration,
    /// Names of the processes that run something, as far as the log contains them.
    pub(crate) busy: BTreeSet<String>,
    /// Position up to which the log was read.
    pub(crate) upto: Sequence,
}

impl Work {
    /// Whether nothing waits or runs.
    pub(crate) fn is_none(&self) -> bool {
        self.waiting == 0 && self.held_back == 0 && self.running == 0
    }
}

/// Assumed duration of an item about which nothing is known.
pub(crate) const UNKNOWN: Duration = Duration::from_secs(10);

/// Maximum assumed duration of an item: sums stay far below their overflow.
const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The expected duration of an item, or the mean duration `service` if there is no estimate.
pub(crate) fn or_mean(expected: Option<Duration>, service: Duration) -> Duration {
    expected.unwrap_or(if service.is_zero() { UNKNOWN } else { service }).min(DURATION_MAX)
}

/// The fraction `part / of` of a sum.
pub(crate) fn share(sum: Duration, part: u64, of: u64) -> Duration {
    if of == 0 { Duration::ZERO } else { sum.mul_f64(part.min(of) as f64 / of as f64) }
}
