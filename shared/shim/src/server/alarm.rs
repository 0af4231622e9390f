//! A timer on the clock of deadlines. It is rarely armed: a later deadline does not change it, and it is set again if
//! it expires too early.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use invariant::Present as _;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::model::Deadline;

/// Expires when a deadline passes; it also counts time in suspend, unlike poll's timeout.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: TimerFd,
    armed: Option<Deadline>,
}

impl Alarm {
    /// Creates an alarm that is not armed.
    pub(crate) fn new() -> nix::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Self { timer: TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?, armed: None })
    }

    /// Makes sure that it expires at `deadline` or before.
    pub(crate) fn arm(&mut self, deadline: Deadline) -> nix::Result<()> {
        if self.armed.is_none_or(|armed| armed > deadline) {
            // Zero would disarm it; the kernel accepts at most i64 nanoseconds (292 years).
            let at = Duration::from_millis(deadline.as_millis().clamp(1, u64::MAX / 4_000_000));
            let at = Expiration::OneShot(TimeSpec::from_duration(at));
            self.timer.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
            self.armed = Some(deadline);
        }
        Ok(())
    }

    /// Records that it expired.
    pub(crate) fn clear(&mut self) {
        // Disarming also clears the readiness.
        self.timer.unset().present("disarming a timer");
        self.armed = None;
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
