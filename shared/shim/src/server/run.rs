//! One command under way.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill, killpg, raise};
use nix::unistd::Pid;

use super::outbox::Outbox;
use super::spawn::Spawned;
use super::sys::{Reaped, Waited, wait_any};
use super::tidy::Tidy;
use super::tree::{Alive, Tree, descendants, measure};
use super::watch::Watch;
use crate::model::{Cause, Deadline, Exit, Limits, Measured, Over as OverLimit, Stream};

/// How many that have ended are reaped before anything else has its turn.
const REAPED_AT_ONCE: usize = 64;

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
    /// Keeps it to its limits, if it has any.
    watch: Option<Watch>,
    /// Whether what outlives its own process stays.
    keep: bool,
    /// What the survivors that it adopted had used before.
    adopted_cpu: Duration,
}

/// A command that is over.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) exit: Exit,
    /// Whether something is left alive.
    pub(crate) kept: bool,
}

/// What else a command is told at its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) number: u64,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) keep: bool,
    /// What the survivors that it adopts had used before.
    pub(crate) adopted_cpu: Duration,
    /// What it may use.
    pub(crate) limits: Limits,
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
    pub(crate) fn new(terms: Terms, started: Instant, spawned: Spawned) -> Self {
        Self {
            number: terms.number,
            deadline: terms.deadline,
            keep: terms.keep,
            adopted_cpu: terms.adopted_cpu,
            kill_at: None,
            pid: spawned.pid,
            wrapper: spawned.wrapper,
            started,
            stdout: spawned.stdout,
            stderr: spawned.stderr,
            cause: Cause::Ended,
            usage: Usage::default(),
            watch: Watch::new(terms.limits, spawned.wrapper),
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

    /// Reads an output once; tells how many bytes, none if there may be no more.
    pub(crate) fn read(&mut self, stream: Stream, outbox: &mut Outbox) -> usize {
        let pipe = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let Some(reader) = pipe else { return 0 };
        match outbox.read_from(stream, reader) {
            Ok(count) if count > 0 => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            // Reading a pipe of ours cannot fail otherwise; if it did, nothing more would come from it.
            Ok(_) | Err(_) => {
                *pipe = None;
                0
            }
        }
    }

    /// Reads what is in the pipes now, a pipe's capacity at most: it goes out whether or not the worker keeps up.
    /// Survivors may go on writing; what they write from now on is not the command's.
    fn drain(&mut self, outbox: &mut Outbox) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let capacity = self.output(stream).and_then(|pipe| fcntl(pipe, FcntlArg::F_GETPIPE_SZ).ok());
            let mut left = capacity.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(64 * 1024);
            while left > 0 {
                match self.read(stream, outbox) {
                    0 => break,
                    count => left = left.saturating_sub(count),
                }
            }
        }
    }

    /// What it has used until now.
    pub(crate) fn measure(&self) -> Measured {
        let alive = measure();
        let cpu = (self.usage.cpu + alive.cpu).saturating_sub(self.adopted_cpu);
        Measured { cpu, memory_bytes: alive.memory_bytes }
    }

    /// When its limits are to be looked after next.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        self.watch.as_ref().map(Watch::due)
    }

    /// Looks after its limits, if it is time; which is broken, if one is.
    pub(crate) fn look(&mut self, tidy: &Tidy) -> Option<OverLimit> {
        let watch = self.watch.as_mut().filter(|watch| watch.due() <= Instant::now())?;
        watch.look(self.usage.cpu, tidy)
    }

    /// Asks the command's process group to end (or all that a wrapper started), and notes until when.
    pub(crate) fn ask_to_end(&mut self, grace: Duration) -> io::Result<()> {
        self.cause = Cause::Killed;
        // A grace too long to be counted is one without end; asked twice, the earlier end holds.
        self.kill_at = self.kill_at.into_iter().chain(Instant::now().checked_add(grace)).min();
        let own = Pid::from_raw(i32::try_from(self.pid).map_err(io::Error::other)?);
        if self.wrapper {
            // In a namespace of their own the first process is deaf to it, as the kernel has it.
            // Where they are not to be seen, they are killed when the grace is over.
            for pid in
                descendants().unwrap_or_default().into_iter().map(Pid::from_raw).filter(|pid| *pid != own)
            {
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
        for _ in 0..REAPED_AT_ONCE {
            if self.usage.status.is_some() {
                return Ok(true);
            }
            match wait_any(false)? {
                Waited::Reaped(reaped) => self.usage.add(self.pid, reaped),
                Waited::NoneEnded | Waited::NoChildren => return Ok(false),
            }
        }
        // The rest has its turn after all else: those of a fork bomb end as fast as they can be reaped.
        raise(Signal::SIGCHLD)?;
        Ok(self.usage.status.is_some())
    }

    /// Whether it keeps what outlives it, when it ends for `cause`.
    pub(crate) fn keeps(&self, cause: Cause) -> bool {
        self.keep && self.final_cause(cause) == Cause::Ended
    }

    /// `cause`, unless a kill was under way already.
    fn final_cause(&self, cause: Cause) -> Cause {
        if self.cause == Cause::Ended { cause } else { self.cause }
    }

    /// Kills and reaps whatever is left unless it keeps that, takes what is left in the pipes, and sums up.
    pub(crate) fn end(
        mut self,
        cause: Cause,
        tree: Tree,
        tidy: &Tidy,
        outbox: &mut Outbox,
    ) -> io::Result<Over> {
        let keeps = self.keeps(cause);
        let (pid, usage) = (self.pid, &mut self.usage);
        let kept = loop {
            match wait_any(false)? {
                Waited::Reaped(reaped) => usage.add(pid, reaped),
                Waited::NoChildren => break false,
                Waited::NoneEnded if keeps => break true,
                Waited::NoneEnded => tree.destroy(|reaped| usage.add(pid, reaped))?,
            }
        };
        self.drain(outbox);
        let alive = if kept { measure() } else { Alive::default() };
        let status = self.usage.status;
        let cpu = (self.usage.cpu + alive.cpu).saturating_sub(self.adopted_cpu);
        let seen = self.watch.as_ref().map(Watch::cpu).unwrap_or_default();
        let cpu = cpu.max(seen);
        let broken = || self.watch.as_ref().and_then(|watch| watch.look_back(cpu, tidy));
        let cause = match self.final_cause(cause) {
            Cause::Ended => broken().map_or(Cause::Ended, Cause::OverLimit),
            // All of it is known now.
            Cause::OverLimit(over) => {
                Cause::OverLimit(broken().filter(|all| all.limit == over.limit).unwrap_or(over))
            }
            other @ (Cause::Killed | Cause::Deadline) => other,
        };
        let exit = Exit {
            exit_code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            cause,
            wall: self.started.elapsed(),
            cpu,
            peak_memory_bytes: self.usage.peak_memory_bytes.max(alive.largest_bytes),
        };
        Ok(Over { exit, kept })
    }
}
