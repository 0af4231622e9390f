//! The kernel keeps the deadline too, for a tree that is stopped as a whole when it comes.
//!
//! The outer process has a timer of the kernel that sends it SIGKILL, and does nothing else. A process dies of that though
//! it is stopped, or in a frozen control group (of version 2). Its death kills the first process of the namespace
//! (`PR_SET_PDEATHSIG`), whose death kills all that are in it, stopped or not: no process runs again before it dies.
//!
//! A timer can only kill who made it, and the first process of a namespace cannot be killed by its own: so the inner process
//! tells the outer one. The signal of a parent's death is tied to the thread that started the child: the outer process has one.
//!
//! A command costs nothing here while commands follow each other: what was armed for an earlier one comes earlier, and
//! is moved before half of its time has passed.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

use crate::model::Deadline;

/// How much later than the inner process the kernel kills, in milliseconds: a tree that is not stopped ends the command alone, keeps the
/// shim and tells why. The shortest lease leaves 125 ms between its deadline and its end.
const LATER: u64 = 50;
/// How long the outer process may take to answer: it sleeps until it is asked.
const PATIENCE: Duration = Duration::from_secs(30);
/// A deadline, and whether an answer is awaited.
const MESSAGE: usize = 9;

/// The inner process's hold on the outer one.
#[derive(Debug)]
pub(crate) struct Guardian {
    link: UnixStream,
    /// Whether the kernel is to keep deadlines at all.
    wanted: bool,
    /// What the kernel keeps, and when that is looked at again.
    armed: Option<(Deadline, Deadline)>,
}

impl Guardian {
    /// Over the socket that the outer process made.
    pub(crate) fn new(link: OwnedFd, wanted: bool) -> io::Result<Self> {
        let link = UnixStream::from(link);
        link.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { link, wanted, armed: None })
    }

    /// Makes sure that the kernel kills everything by `deadline`, before this returns.
    pub(crate) fn cover(&mut self, deadline: Option<Deadline>) -> io::Result<()> {
        let Some(deadline) = deadline.filter(|deadline| self.wanted && *deadline != Deadline::NEVER) else {
            return Ok(());
        };
        match self.armed {
            Some((armed, look)) if armed <= deadline => {
                if look.has_passed() {
                    self.arm(Some(deadline), false)
                } else {
                    Ok(())
                }
            }
            Some(_) | None => self.arm(Some(deadline), true),
        }
    }

    /// Moves what is armed to `deadline`, which may be none, when it is time for that.
    pub(crate) fn look(&mut self, deadline: Option<Deadline>) -> io::Result<()> {
        let Some((armed, look)) = self.armed else { return Ok(()) };
        if !look.has_passed() {
            return Ok(());
        }
        match deadline.filter(|deadline| *deadline != Deadline::NEVER) {
            None => self.arm(None, false),
            Some(deadline) if deadline > armed => self.arm(Some(deadline), false),
            Some(_) => {
                // It has come halfway: a renewal sets it again.
                self.armed = Some((armed, Deadline::NEVER));
                Ok(())
            }
        }
    }

    /// When [`Guardian::look`] has something to do.
    pub(crate) fn look_at(&self) -> Option<Deadline> {
        self.armed.map(|(_, look)| look).filter(|look| *look != Deadline::NEVER)
    }

    fn arm(&mut self, deadline: Option<Deadline>, answer: bool) -> io::Result<()> {
        let mut message = [0; MESSAGE];
        let at = deadline.unwrap_or(Deadline::NEVER).as_millis().to_le_bytes();
        for (byte, value) in message.iter_mut().zip(at.into_iter().chain([u8::from(answer)])) {
            *byte = value;
        }
        self.link.write_all(&message)?;
        if answer {
            self.link.read_exact(&mut [0])?;
        }
        self.armed = deadline.map(|deadline| (deadline, Deadline::after(deadline.remaining() / 2)));
        Ok(())
    }
}

impl AsFd for Guardian {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// The outer process's half: returns when the inner process is gone.
pub(crate) fn keep(mut link: &UnixStream) -> io::Result<()> {
    let mut timer = None;
    let mut message = [0; MESSAGE];
    loop {
        match link.read_exact(&mut message) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let (at, answer) = message.split_at(MESSAGE - 1);
        let at = at.iter().rev().fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
        set(&mut timer, Deadline::from_millis(at))?;
        if answer != [0] {
            link.write_all(&[0])?;
        }
    }
}

fn set(timer: &mut Option<Timer>, deadline: Deadline) -> io::Result<()> {
    let timer = if let Some(timer) = timer {
        timer
    } else {
        let kill = SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGKILL, si_value: 0 });
        timer.insert(Timer::new(ClockId::CLOCK_BOOTTIME, kill)?)
    };
    // Zero disarms it.
    let at = if deadline == Deadline::NEVER { 0 } else { deadline.as_millis().saturating_add(LATER) };
    let at = TimeSpec::from_duration(Duration::from_millis(at.min(u64::MAX / 4_000_000)));
    timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
    Ok(())
}
