//! One command under way.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::outbox::Outbox;
use super::spawn::Spawned;
use super::sys::{Reaped, Waited, wait_any};
use super::tree::{Tree, descendants};
use crate::model::{Cause, Deadline, Exit, Stream};

/// A command under way.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) number: u64,
    pub(crate) deadline: Option<Deadline>,
    /// When everything is killed because SIGTERM was not heeded.
    pub(crate) kill_at: Option<Instant>,
    pid: u32,
    wrapper: bool,
    started: Instant,
    /// The reading ends of its outputs until they end.
    stdout: Option<PipeReader>,
    stderr: Option<PipeReader>,
    cause: Cause,
    usage: Usage,
}

/// What the command's processes took and how its own one ended.
#[derive(Debug, Default)]
struct Usage {
    status: Option<ExitStatus>,
    cpu: Duration,
    peak_memory_bytes: u64,
}

impl Usage {
    fn add(&mut self, main: u32, reaped: Reaped) {
        // What a child had waited for is in its own figures; a straggler that we adopted comes by itself.
        self.cpu += reaped.cpu;
        self.peak_memory_bytes = self.peak_memory_bytes.max(reaped.peak_memory_bytes);
        if reaped.pid == main {
            self.status = Some(reaped.status);
        }
    }
}

impl Run {
    /// Takes over what was just started.
    pub(crate) fn new(number: u64, deadline: Option<Deadline>, started: Instant, spawned: Spawned) -> Self {
        Self {
            number,
            deadline,
            kill_at: None,
            pid: spawned.pid,
            wrapper: spawned.wrapper,
            started,
            stdout: spawned.stdout,
            stderr: spawned.stderr,
            cause: Cause::Ended,
            usage: Usage::default(),
        }
    }

    /// Whether its deadline has passed.
    pub(crate) fn is_overdue(&self) -> bool {
        self.deadline.is_some_and(Deadline::has_passed)
    }

    /// The descriptor of an output that has not ended.
    pub(crate) fn output(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        let pipe = match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads an output once; tells whether there may be more.
    pub(crate) fn read(&mut self, stream: Stream, outbox: &mut Outbox) -> bool {
        let pipe = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let Some(reader) = pipe else { return false };
        match outbox.read_from(stream, reader) {
            Ok(true) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            // Reading a pipe of ours cannot fail otherwise; if it did, nothing more would come from it.
            Ok(false) | Err(_) => {
                *pipe = None;
                false
            }
        }
    }

    /// Asks the command's process group to end (or all that a wrapper started), and notes until when.
    pub(crate) fn ask_to_end(&mut self, grace: Duration) -> io::Result<()> {
        self.cause = Cause::Killed;
        // A grace too long to be counted is one without end; asked twice, the earlier end holds.
        self.kill_at = self.kill_at.into_iter().chain(Instant::now().checked_add(grace)).min();
        let own = Pid::from_raw(i32::try_from(self.pid).map_err(io::Error::other)?);
        if self.wrapper {
            // In a namespace of their own the first process is deaf to it, as the kernel has it.
            for pid in descendants()?.into_iter().map(Pid::from_raw).filter(|pid| *pid != own) {
                let _ = kill(pid, Signal::SIGTERM);
            }
        } else {
            // Not yet reaped, so the number is still this group's; it may be empty of others.
            let _ = killpg(own, Signal::SIGTERM);
        }
        Ok(())
    }

    /// Reaps what has ended; tells whether the command's own process has.
    pub(crate) fn reap(&mut self) -> io::Result<bool> {
        while self.usage.status.is_none() {
            match wait_any(false)? {
                Waited::Reaped(reaped) => self.usage.add(self.pid, reaped),
                Waited::NoneEnded | Waited::NoChildren => break,
            }
        }
        Ok(self.usage.status.is_some())
    }

    /// Kills and reaps whatever is left, takes what is left in the pipes, and sums up. `cause` is why, unless a
    /// kill was under way already.
    pub(crate) fn end(mut self, cause: Cause, tree: Tree, outbox: &mut Outbox) -> io::Result<Exit> {
        let (pid, usage) = (self.pid, &mut self.usage);
        loop {
            match wait_any(false)? {
                Waited::Reaped(reaped) => usage.add(pid, reaped),
                Waited::NoChildren => break,
                Waited::NoneEnded => tree.destroy(|reaped| usage.add(pid, reaped))?,
            }
        }
        // All writers are dead, so the pipes hold all that will ever come, a pipe's capacity at most: it goes
        // out whether or not the worker keeps up.
        for stream in [Stream::Stdout, Stream::Stderr] {
            while self.read(stream, outbox) {}
        }
        let status = self.usage.status;
        Ok(Exit {
            exit_code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            cause: if self.cause == Cause::Ended { cause } else { self.cause },
            wall: self.started.elapsed(),
            cpu: self.usage.cpu,
            peak_memory_bytes: self.usage.peak_memory_bytes,
        })
    }
}
