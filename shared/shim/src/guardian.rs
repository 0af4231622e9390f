//! The kernel enforces the deadline too, for a process tree that is stopped as a whole when the deadline passes.
//!
//! The outer process has a kernel timer that sends it SIGKILL, and does nothing else. The signal kills a process
//! even if it is stopped, or in a frozen control group (version 2). The outer process's death kills the first
//! process of the namespace (`PR_SET_PDEATHSIG`), whose death kills all processes in it, stopped or not: no process
//! runs again before it dies.
//!
//! A timer can only signal the process that created it, and the first process of a namespace cannot be killed by its
//! own timer: so the inner process passes the deadline to the outer one. The parent death signal is tied to the
//! thread that started the child: the outer process has only one.
//!
//! Commands that follow each other cost nothing here: a timer armed for an earlier command expires earlier, and is
//! moved before half of its time has passed.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

use crate::model::Deadline;

/// Milliseconds between the deadline and the kernel's kill: a tree that is not stopped ends only the command, keeps
/// the shim and reports the reason. The shortest lease leaves 125 ms between its deadline and its end.
const LATER: u64 = 50;
/// Time limit for an answer of the outer process, which sleeps until it receives a request.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a message: a deadline, and whether an answer is expected.
const MESSAGE: usize = 9;

/// The inner process's connection to the outer one.
#[derive(Debug)]
pub(crate) struct Guardian {
    link: UnixStream,
    /// Whether the kernel must enforce deadlines.
    wanted: bool,
    /// The armed deadline, and when to check it again.
    armed: Option<(Deadline, Deadline)>,
}

impl Guardian {
    /// Uses the socket that the outer process created.
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

    /// Moves the timer to `deadline`, or disarms it without one, if the time of the check has come.
    pub(crate) fn look(&mut self, deadline: Option<Deadline>) -> io::Result<()> {
        let Some((armed, look)) = self.armed else { return Ok(()) };
        if !look.has_passed() {
            return Ok(());
        }
        match deadline.filter(|deadline| *deadline != Deadline::NEVER) {
            None => self.arm(None, false),
            Some(deadline) if deadline > armed => self.arm(Some(deadline), false),
            Some(_) => {
                // Half of the time has passed: a renewal schedules the next check.
                self.armed = Some((armed, Deadline::NEVER));
                Ok(())
            }
        }
    }

    /// When [`Guardian::look`] must be called.
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

/// The outer process's half: returns when the inner process has ended.
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
    // Zero disarms the timer.
    let at = if deadline == Deadline::NEVER { 0 } else { deadline.as_millis().saturating_add(LATER) };
    let at = TimeSpec::from_duration(Duration::from_millis(at.min(u64::MAX / 4_000_000)));
    timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
    Ok(())
}
