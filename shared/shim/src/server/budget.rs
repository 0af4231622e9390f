//! Limits the cost of one measurement of a command's processes.

use std::time::Duration;

use invariant::Present as _;
use nix::time::{ClockId, clock_gettime};

/// Maximum processor time of one measurement. In that time the shim handles nothing else,
/// neither kills nor deadlines.
const MEASUREMENT_MAX: Duration = Duration::from_secs(1);

/// The allowed cost of a measurement. It is processor time, not elapsed time: a command that keeps all processors
/// busy uses none of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    until: Duration,
}

/// The budget is spent: the command has more processes or files than it can need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spent;

impl Budget {
    /// A budget without a limit.
    pub(crate) const ANY: Self = Self { until: Duration::MAX };

    /// The budget of a measurement that begins now.
    pub(crate) fn of_a_measurement() -> Self {
        Self { until: cpu_of_shim().saturating_add(MEASUREMENT_MAX) }
    }

    /// A budget that is already spent.
    #[cfg(test)]
    pub(crate) fn spent() -> Self {
        Self { until: Duration::ZERO }
    }

    /// Fails if the budget is spent.
    pub(crate) fn check(self) -> Result<(), Spent> {
        if self.until == Duration::MAX || cpu_of_shim() <= self.until { Ok(()) } else { Err(Spent) }
    }
}

/// Processor time of this process. Waiting for a processor, while a command uses all of them, costs nothing.
pub(crate) fn cpu_of_shim() -> Duration {
    let used = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from);
    used.present("the system has no CLOCK_PROCESS_CPUTIME_ID")
}
