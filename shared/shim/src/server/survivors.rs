//! Survivors of a command, while no command runs.

use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::Server;
use super::freeze::{freeze, thaw};
use super::sys::{Waited, wait_any};
use super::tree::measure;
use crate::frame::Reply;
use crate::model::Deadline;

/// Longest time that survivors get: an `Instant` cannot be arbitrarily late.
const GRACE_MAX: Duration = Duration::from_hours(100 * 365 * 24);

/// Time for processes to stop: those in a call of the kernel finish it first.
const STOPPED_WITHIN: Duration = Duration::from_millis(500);

/// The survivors of the last command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survivors {
    None,
    /// They stay until the deadline of the command that left them.
    Alive {
        run: u64,
        deadline: Option<Deadline>,
    },
    /// They were sent SIGTERM, and are killed at this moment.
    Ending {
        number: u64,
        at: Instant,
    },
}

impl Survivors {
    /// When they are killed for certain.
    pub(crate) fn kill_at(self) -> Option<Instant> {
        match self {
            Self::None | Self::Alive { .. } => None,
            Self::Ending { at, .. } => Some(at),
        }
    }

    /// When they are killed unless the deadline is renewed.
    pub(crate) fn deadline(self) -> Option<Deadline> {
        match self {
            Self::Alive { deadline, .. } => deadline,
            Self::None | Self::Ending { .. } => None,
        }
    }

    /// Processor time that they have used so far.
    pub(crate) fn cpu(self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Alive { .. } | Self::Ending { .. } => measure().cpu,
        }
    }
}

impl Server {
    /// Ends the survivors, at the latest after `grace`.
    pub(crate) fn forget(&mut self, number: u64, grace: Duration) -> io::Result<()> {
        match Instant::now().checked_add(grace.min(GRACE_MAX)) {
            Some(at) if !grace.is_zero() && self.survivors != Survivors::None => {
                self.survivors = Survivors::Ending { number, at };
                self.tree.signal(Signal::SIGTERM)?;
                // Stopped ones would not notice.
                thaw()?;
                self.tree.signal(Signal::SIGCONT)?;
                self.reap_survivors()
            }
            _ => self.forget_now(number),
        }
    }

    /// Stops the survivors, or lets them go on. Those that cannot be stopped are killed.
    pub(crate) fn hold(&mut self, number: u64, hold: bool) -> io::Result<()> {
        if self.survivors != Survivors::None {
            if !hold {
                thaw()?;
            } else if !freeze(STOPPED_WITHIN)? {
                self.tree.destroy(|_| ())?;
                self.survivors = Survivors::None;
                self.outbox.put_urgent(&Reply::Kept(false));
            }
        }
        self.outbox.put_urgent(&Reply::Held(number));
        Ok(())
    }

    /// Kills the survivors now.
    pub(crate) fn forget_now(&mut self, number: u64) -> io::Result<()> {
        if self.survivors != Survivors::None {
            self.tree.destroy(|_| ())?;
        }
        self.survivors = Survivors::None;
        self.outbox.put_urgent(&Reply::Forgotten(number));
        Ok(())
    }

    /// Moves the deadline of the survivors of this command.
    pub(crate) fn renew_survivors(&mut self, number: u64, next: Deadline) -> io::Result<()> {
        if let Survivors::Alive { run, deadline } = &mut self.survivors
            && *run == number
        {
            *deadline = Some(next);
        }
        self.watch_survivors()?;
        let deadline = self.survivors.deadline();
        self.cover(deadline)
    }

    /// Kills the survivors if their deadline has passed, otherwise arms the alarm for it.
    pub(crate) fn watch_survivors(&mut self) -> io::Result<()> {
        let Survivors::Alive { deadline: Some(deadline), .. } = self.survivors else { return Ok(()) };
        if !deadline.has_passed() {
            return Ok(self.alarm.arm(deadline)?);
        }
        self.tree.destroy(|_| ())?;
        self.survivors = Survivors::None;
        self.outbox.put_urgent(&Reply::Kept(false));
        Ok(())
    }

    /// Reaps survivors that have ended.
    pub(crate) fn reap_survivors(&mut self) -> io::Result<()> {
        if self.survivors == Survivors::None {
            return Ok(());
        }
        loop {
            match wait_any(false)? {
                Waited::Reaped(_) | Waited::Traced => {}
                Waited::NoneEnded => return Ok(()),
                Waited::NoChildren => break,
            }
        }
        let reply = match self.survivors {
            Survivors::Ending { number, .. } => Reply::Forgotten(number),
            Survivors::None | Survivors::Alive { .. } => Reply::Kept(false),
        };
        self.survivors = Survivors::None;
        self.outbox.put_urgent(&reply);
        Ok(())
    }
}
