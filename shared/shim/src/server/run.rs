//! One running command of the shim.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill, killpg, raise};
use nix::unistd::Pid;

use super::cleaner::Cleaner;
use super::limit_monitor::LimitMonitor;
use super::outbox::Outbox;
use super::spawn::Spawned;
use super::sys::{Reaped, Waited, wait_any};
use super::tree::{Alive, Tree, descendants, measure};
use crate::model::{Cause, Deadline, Exit, Limits, Measured, Over, Stream, Switches};

/// Maximum number of ended processes that are reaped before other work continues.
const REAPED_AT_ONCE: usize = 64;

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) number: u64,
    pub(crate) deadline: Option<Deadline>,
    /// When everything is killed because SIGTERM had no effect.
    pub(crate) kill_at: Option<Instant>,
    pid: u32,
    wrapper: bool,
    started: Instant,
    /// The reading ends of its outputs until they end.
    stdout: Option<PipeReader>,
    stderr: Option<PipeReader>,
    cause: Cause,
    usage: Usage,
    /// Enforces its limits, if there are any.
    monitor: Option<LimitMonitor>,
    /// Whether processes that outlive its own process stay.
    keep: bool,
    /// Processor time that the adopted survivors had used before.
    adopted_cpu: Duration,
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct RunEnd {
    pub(crate) exit: Exit,
    /// Whether processes are left alive.
    pub(crate) kept: bool,
}

/// The settings of a command in addition to its program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunOptions {
    pub(crate) number: u64,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) keep: bool,
    /// Processor time that the adopted survivors had used before.
    pub(crate) adopted_cpu: Duration,
    pub(crate) limits: Limits,
}

/// Usage of the command's processes, and how its own process ended.
#[derive(Debug, Default)]
struct Usage {
    status: Option<ExitStatus>,
    cpu: Duration,
    peak_memory_bytes: u64,
    switches: Switches,
}

impl Usage {
    fn add(&mut self, main: u32, reaped: Reaped) {
        // The usage of a child includes the children that it reaped; an orphan that the shim
        // adopted is counted separately.
        self.cpu += reaped.cpu;
        self.switches += reaped.switches;
        self.peak_memory_bytes = self.peak_memory_bytes.max(reaped.peak_memory_bytes);
        if reaped.pid == main {
            self.status = Some(reaped.status);
        }
    }
}

impl Run {
    /// Tracks a command that was just started.
    pub(crate) fn new(options: RunOptions, started: Instant, spawned: Spawned) -> Self {
        Self {
            number: options.number,
            deadline: options.deadline,
            keep: options.keep,
            adopted_cpu: options.adopted_cpu,
            kill_at: None,
            pid: spawned.pid,
            wrapper: spawned.wrapper,
            started,
            stdout: spawned.stdout,
            stderr: spawned.stderr,
            cause: Cause::Ended,
            usage: Usage::default(),
            monitor: LimitMonitor::new(options.limits, spawned.wrapper),
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

    /// Reads an output once; returns the number of bytes, 0 if there may be none left.
    pub(crate) fn read(&mut self, stream: Stream, outbox: &mut Outbox) -> usize {
        let pipe = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let Some(reader) = pipe else { return 0 };
        match outbox.read_from(stream, reader) {
            Ok(count) if count > 0 => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            // Reading the pipe cannot fail in other ways; if it did, it would deliver nothing more.
            Ok(_) | Err(_) => {
                *pipe = None;
                0
            }
        }
    }

    /// Reads what is in the pipes now, at most the capacity of a pipe: it is sent even if the worker reads slowly.
    /// Survivors may continue to write; their later output does not belong to the command.
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

    /// Its usage so far.
    pub(crate) fn measure(&self) -> Measured {
        let alive = measure();
        let cpu = (self.usage.cpu + alive.cpu).saturating_sub(self.adopted_cpu);
        Measured { cpu, memory_bytes: alive.memory_bytes }
    }

    /// When its limits must be checked next.
    pub(crate) fn check_at(&self) -> Option<Instant> {
        self.monitor.as_ref().map(LimitMonitor::due)
    }

    /// Checks the limits if it is time; returns an exceeded one.
    pub(crate) fn check_limits(&mut self, cleaner: &Cleaner) -> Option<Over> {
        let monitor = self.monitor.as_mut().filter(|monitor| monitor.due() <= Instant::now())?;
        monitor.check(self.usage.cpu, cleaner)
    }

    /// Sends SIGTERM to the command's process group (or to all descendants of a wrapper), and records when to kill.
    pub(crate) fn ask_to_end(&mut self, grace: Duration) -> io::Result<()> {
        self.cause = Cause::Killed;
        // A grace that overflows means no time limit; of two requests the earlier end applies.
        self.kill_at = self.kill_at.into_iter().chain(Instant::now().checked_add(grace)).min();
        let own = Pid::from_raw(i32::try_from(self.pid).map_err(io::Error::other)?);
        if self.wrapper {
            // The kernel does not deliver SIGTERM to the first process of a namespace without a handler. Processes
            // that are not visible are killed when the grace is over.
            for pid in
                descendants().unwrap_or_default().into_iter().map(Pid::from_raw).filter(|pid| *pid != own)
            {
                // The process may have ended since it was listed.
                let _ = kill(pid, Signal::SIGTERM);
            }
        } else {
            // Not yet reaped, so the number still denotes this group; its other members may have ended.
            let _ = killpg(own, Signal::SIGTERM);
        }
        Ok(())
    }

    /// Reaps ended processes; returns whether the command's own process has ended.
    pub(crate) fn reap(&mut self) -> io::Result<bool> {
        for _ in 0..REAPED_AT_ONCE {
            if self.usage.status.is_some() {
                return Ok(true);
            }
            match wait_any(false)? {
                Waited::Reaped(reaped) => self.usage.add(self.pid, reaped),
                Waited::Traced => {}
                Waited::NoneEnded | Waited::NoChildren => return Ok(false),
            }
        }
        // The rest is reaped after all other work: processes of a fork bomb end as fast as they can be reaped.
        raise(Signal::SIGCHLD)?;
        Ok(self.usage.status.is_some())
    }

    /// Whether survivors stay alive when it ends for `cause`.
    pub(crate) fn keeps(&self, cause: Cause) -> bool {
        self.keep && self.final_cause(cause) == Cause::Ended
    }

    /// `cause`, unless a kill was already under way.
    fn final_cause(&self, cause: Cause) -> Cause {
        if self.cause == Cause::Ended { cause } else { self.cause }
    }

    /// Kills and reaps all remaining processes unless they are kept, reads the rest of the pipes,
    /// and returns the result.
    pub(crate) fn end(
        mut self,
        cause: Cause,
        tree: Tree,
        cleaner: &Cleaner,
        outbox: &mut Outbox,
    ) -> io::Result<RunEnd> {
        let keeps = self.keeps(cause);
        let (pid, usage) = (self.pid, &mut self.usage);
        let kept = loop {
            match wait_any(false)? {
                Waited::Reaped(reaped) => usage.add(pid, reaped),
                Waited::Traced => {}
                Waited::NoChildren => break false,
                Waited::NoneEnded if keeps => break true,
                Waited::NoneEnded => tree.destroy(|reaped| usage.add(pid, reaped))?,
            }
        };
        self.drain(outbox);
        let alive = if kept { measure() } else { Alive::default() };
        let status = self.usage.status;
        let cpu = (self.usage.cpu + alive.cpu).saturating_sub(self.adopted_cpu);
        let seen = self.monitor.as_ref().map(LimitMonitor::cpu).unwrap_or_default();
        let cpu = cpu.max(seen);
        let broken = || self.monitor.as_ref().and_then(|monitor| monitor.check_final(cpu, cleaner));
        let cause = match self.final_cause(cause) {
            Cause::Ended => broken().map_or(Cause::Ended, Cause::OverLimit),
            // The final usage is known now.
            Cause::OverLimit(over) => {
                Cause::OverLimit(broken().filter(|all| all.limit == over.limit).unwrap_or(over))
            }
            other @ (Cause::Killed | Cause::Deadline | Cause::OutOfMemory | Cause::OutputTooLarge(..)) => {
                other
            }
        };
        let exit = Exit {
            exit_code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            cause,
            wall: self.started.elapsed(),
            cpu,
            peak_memory_bytes: self.usage.peak_memory_bytes.max(alive.largest_bytes),
            switches: self.usage.switches,
        };
        Ok(RunEnd { exit, kept })
    }
}
