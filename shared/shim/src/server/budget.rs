//! How much one look at the processes of a command may cost.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The most processor time of one look. Nothing else is done meanwhile: no kill, no deadline.
const LOOK_MOST: Duration = Duration::from_secs(1);

/// What a look may cost. It is processor time, not time: that a command keeps all processors busy uses up none of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    until: Duration,
}

/// There is more to look at than that: more than any command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spent;

impl Budget {
    /// Without end.
    pub(crate) const ANY: Self = Self { until: Duration::MAX };

    /// For a look that begins now.
    pub(crate) fn of_a_look() -> Self {
        Self { until: cpu_of_shim().saturating_add(LOOK_MOST) }
    }

    /// One that is spent already.
    #[cfg(test)]
    pub(crate) fn spent() -> Self {
        Self { until: Duration::ZERO }
    }

    /// Whether there is something left of it.
    pub(crate) fn check(self) -> Result<(), Spent> {
        if self.until == Duration::MAX || cpu_of_shim() <= self.until { Ok(()) } else { Err(Spent) }
    }
}

/// Processor time of this very process. A wait for a processor, of which a command may use all, costs nothing.
pub(crate) fn cpu_of_shim() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
