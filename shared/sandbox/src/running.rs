//! A running command of a slot.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use invariant::impossible;
use shim::{Cause, Deadline, Exit, Limit, Over, Stream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::cgroups::Group;
use crate::config::Run;
use crate::error::SandboxError;
use crate::limits::Guard;
use crate::log::Log;
use crate::outcome::{Ended, NotStarted, Outcome};

/// Time between two checks of the length of the outputs, if they do not grow.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum time between two checks; also until the first one. A short command ends before it.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Maximum bytes that are read of bubblewrap's error message.
const ERROR_BYTES_MAX: usize = 4096;

/// The data of one run.
#[derive(Debug)]
pub(crate) struct RunContext {
    pub(crate) run: Run,
    pub(crate) stdout: Log,
    pub(crate) stderr: Log,
    /// Where bubblewrap, if it was started for this command, reports the exit code.
    pub(crate) status: Option<Arc<File>>,
    /// Folders in the input root that do not belong to the command.
    pub(crate) made: Vec<PathBuf>,
    /// Signals the end to the readers of the logs.
    pub(crate) over: watch::Sender<bool>,
    /// Checks its limits, if there are any to check here.
    pub(crate) guard: Option<Guard>,
    /// When it must be dead, if that moves.
    pub(crate) lease: Option<Lease>,
}

/// The right of a command to run until a moment that its owner moves.
#[derive(Debug)]
pub(crate) struct Lease {
    deadline: watch::Receiver<Deadline>,
    /// When it must be dead in any case.
    latest: Option<Deadline>,
    /// What the shim knows.
    sent: Option<Deadline>,
}

impl Lease {
    pub(crate) fn new(deadline: watch::Receiver<Deadline>, latest: Option<Deadline>) -> Self {
        Self { deadline, latest, sent: None }
    }

    /// Sends the current deadline to the shim, unless it knows it. May be dropped and called again.
    async fn renew(&mut self, control: &shim::Control) {
        let now = *self.deadline.borrow_and_update();
        let now = self.latest.map_or(now, |latest| now.min(latest));
        if self.sent != Some(now) {
            // If the shim is gone, the next event says so.
            let _ = control.renew(now).await;
            self.sent = Some(now);
        }
    }

    /// Returns when the deadline has moved; never if there is none, or no owner that moves it.
    async fn moved(lease: Option<&mut Self>) {
        let has_moved = match lease {
            Some(lease) => lease.deadline.changed().await.is_ok(),
            None => false,
        };
        if !has_moved {
            std::future::pending::<()>().await;
        }
    }
}

/// The events of a command: started (unless it cannot be started), then done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It was started at this time.
    Started(SystemTime),
    /// It has ended in this way.
    Done(Outcome),
}

/// A running command. Dropping it before its end kills the command.
#[derive(Debug)]
pub struct Running<'slot> {
    context: RunContext,
    state: State<'slot>,
    /// Why it was ordered to end.
    reason: Option<Cause>,
    started_at: Option<SystemTime>,
    timeout_at: Option<Instant>,
    /// When the lengths of the outputs are checked next, and what they were together at the last check.
    check_at: Instant,
    checked: (Instant, u64),
}

#[derive(Debug)]
enum State<'slot> {
    Started { shim: shim::Running<'slot>, group: &'slot Group },
    NotStarted(Outcome),
}

/// A handle that other tasks can use to end one command.
#[derive(Debug, Clone)]
pub struct Control(Option<shim::Control>);

impl Control {
    /// Sends SIGTERM to the command, and SIGKILL to all its processes after `grace`; at once if `grace` is zero.
    /// Returns when the request is sent; it has no effect after the command's end.
    pub async fn kill(&self, grace: Duration) -> Result<(), SandboxError> {
        match &self.0 {
            Some(control) => Ok(control.kill(grace).await?),
            None => Ok(()),
        }
    }
}

impl<'slot> Running<'slot> {
    /// A command that was sent to the shim.
    pub(crate) fn started(context: RunContext, shim: shim::Running<'slot>, group: &'slot Group) -> Self {
        Self::new(context, State::Started { shim, group })
    }

    /// A command that ended before its start.
    pub(crate) fn not_started(context: RunContext, outcome: Outcome) -> Self {
        Self::new(context, State::NotStarted(outcome))
    }

    fn new(context: RunContext, state: State<'slot>) -> Self {
        let now = Instant::now();
        let timeout_at = context.run.timeout.and_then(|timeout| now.checked_add(timeout));
        let (check_at, checked) = (now + CHECK_INTERVAL_MIN, (now, 0));
        Self { context, state, reason: None, started_at: None, timeout_at, check_at, checked }
    }

    /// The log of standard output.
    pub fn stdout(&self) -> &Log {
        &self.context.stdout
    }

    /// The log of standard error.
    pub fn stderr(&self) -> &Log {
        &self.context.stderr
    }

    /// A handle that other tasks can use to end this command, and no other.
    pub fn control(&self) -> Control {
        match &self.state {
            State::Started { shim, .. } => Control(Some(shim.control())),
            State::NotStarted(_) => Control(None),
        }
    }

    /// Waits for the end of the command.
    pub async fn finish(mut self) -> Result<Outcome, SandboxError> {
        loop {
            if let Event::Done(outcome) = self.next_event().await? {
                return Ok(outcome);
            }
        }
    }

    /// The next event. May be dropped and called again without losing events. Limits are only enforced while it is
    /// being called; do not call it after [`Event::Done`].
    pub async fn next_event(&mut self) -> Result<Event, SandboxError> {
        loop {
            let guard = self.context.guard.as_ref().map(Guard::due);
            let due = [self.timeout_at, guard].into_iter().flatten().fold(self.check_at, Instant::min);
            let shim = match &mut self.state {
                State::Started { shim, .. } => shim,
                State::NotStarted(outcome) => {
                    let outcome = outcome.clone();
                    self.context.over.send_replace(true);
                    return Ok(Event::Done(outcome));
                }
            };
            if let Some(lease) = &mut self.context.lease {
                lease.renew(&shim.control()).await;
            }
            let event = tokio::select! {
                biased;
                event = timeout_at(due, shim.next_event()) => event,
                () = Lease::moved(self.context.lease.as_mut()) => continue,
            };
            let Ok(event) = event else {
                self.keep_limits().await?;
                continue;
            };
            let event = match event {
                Err(shim::ShimError::Gone) => return self.shim_died().await,
                event => event?,
            };
            match event {
                Some(shim::Event::Started { at, .. }) => {
                    let at = at.system_time();
                    self.started_at = Some(at);
                    self.count_from(at);
                    return Ok(Event::Started(at));
                }
                Some(shim::Event::Output { .. }) => {}
                Some(shim::Event::Exited(exit)) => return self.ended(&exit).map(Event::Done),
                Some(shim::Event::SpawnFailed { kind, message }) => {
                    self.context.over.send_replace(true);
                    return match NotStarted::of(kind) {
                        // The program that failed is bubblewrap, not the command's.
                        Some(_)
                            if self.context.status.is_some() && kind != shim::SpawnErrorKind::TooLarge =>
                        {
                            Err(SandboxError::Resources(message))
                        }
                        Some(why) => Ok(Event::Done(Outcome::NotStarted { why, message })),
                        None => Err(SandboxError::Resources(message)),
                    };
                }
                None => return Err(shim::ShimError::Gone.into()),
            }
        }
    }

    /// The shim died. It is in the command's control group: if the command filled `/tmp`, which is memory, the kernel
    /// may have killed all processes.
    async fn shim_died(&mut self) -> Result<Event, SandboxError> {
        let State::Started { shim, group } = &mut self.state else {
            impossible!("a command that was not started has lost its shim");
            return Err(shim::ShimError::Gone.into());
        };
        shim.end_shim().await?;
        if !group.end().1 {
            return Err(shim::ShimError::Gone.into());
        }
        // A shim that died may not have reported the start.
        let started = self.started_at.unwrap_or_else(SystemTime::now);
        let exit = Exit {
            exit_code: None,
            signal: Some(9),
            cause: Cause::Killed,
            wall: started.elapsed().unwrap_or_default(),
            cpu: Duration::ZERO,
            peak_memory_bytes: 0,
            switches: shim::Switches::default(),
        };
        self.reason = Some(self.context.out_of_memory(None));
        self.ended(&exit).map(Event::Done)
    }

    /// Counts the timeout from the command's start, not from the request.
    fn count_from(&mut self, started: SystemTime) {
        if let (Some(at), Some(timeout)) = (self.timeout_at, self.context.run.timeout) {
            // The wall clock may have been set back.
            let since = started.elapsed().unwrap_or_default();
            let counted = Instant::now().checked_add(timeout).and_then(|at| at.checked_sub(since));
            // Never earlier, even if the wall clock was changed, and hardly later: the message takes milliseconds.
            let latest = at.checked_add(CHECK_INTERVAL).unwrap_or(at);
            self.timeout_at = counted.map(|counted| counted.clamp(at, latest));
        }
    }

    async fn keep_limits(&mut self) -> Result<(), SandboxError> {
        let now = Instant::now();
        if self.timeout_at.is_some_and(|at| at <= now) {
            self.timeout_at = None;
            self.reason.get_or_insert(Cause::Deadline);
            self.control().kill(self.context.run.kill_grace).await?;
        }
        if self.check_at <= now {
            let lengths = self.context.lengths();
            let (before_at, before) = std::mem::replace(&mut self.checked, (now, sum(lengths)));
            let grown = sum(lengths).saturating_sub(before);
            let left = self.context.run.output_bytes_max.saturating_sub(longest(lengths));
            self.check_at = now + until_check(grown, now.saturating_duration_since(before_at), left);
            if let Some(cause) = self.context.too_large(lengths) {
                self.reason.get_or_insert(cause);
                self.control().kill(Duration::ZERO).await?;
            }
        }
        if let (Some(guard), State::Started { group, shim }) = (&mut self.context.guard, &self.state)
            && let Some(over) = guard.check(group, || shim.own_cpu())
        {
            self.reason.get_or_insert(Cause::OverLimit(over));
            self.control().kill(Duration::ZERO).await?;
        }
        Ok(())
    }

    fn ended(&mut self, exit: &Exit) -> Result<Outcome, SandboxError> {
        let context = &self.context;
        for folder in &context.made {
            // If it is not empty, it belongs to the command.
            let _ = fs::remove_dir(folder);
        }
        let mut code = match (exit.exit_code, exit.signal) {
            (Some(code), _) => code,
            // The message could lack both; Linux always reports one.
            (None, signal) => 128 + signal.unwrap_or(9),
        };
        let asked = match exit.cause {
            Cause::Ended => None,
            Cause::Killed => Some(self.reason.unwrap_or(Cause::Killed)),
            cause @ (Cause::Deadline
            | Cause::OverLimit(_)
            | Cause::OutOfMemory
            | Cause::OutputTooLarge(..)) => Some(cause),
        };
        if let Some(status) = &context.status {
            match (exit_code_in(status), asked) {
                (Some(inner), _) => code = inner,
                (None, Some(_)) => {}
                (None, None) => {
                    context.over.send_replace(true);
                    return context.explain();
                }
            }
        }
        let lengths = context.lengths();
        let (peak, cause) = match &self.state {
            State::Started { group, shim } => {
                let (peak, out_of_memory) = group.end();
                let memory = || out_of_memory.then(|| context.out_of_memory(peak));
                let memory = || memory().filter(|cause| code != 0 || *cause != Cause::OutOfMemory);
                let over =
                    || context.guard.as_ref()?.check_final(group, || shim.own_cpu()).map(Cause::OverLimit);
                (peak, asked.or_else(|| context.too_large(lengths)).or_else(memory).or_else(over))
            }
            State::NotStarted(_) => (None, asked),
        };
        let cause = cause.unwrap_or(Cause::Ended);
        let [stdout, stderr] = lengths;
        let (stdout_bytes, stderr_bytes) =
            (context.cut(&context.stdout, stdout)?, context.cut(&context.stderr, stderr)?);
        context.over.send_replace(true);
        // A shim that died may not have reported the start.
        let started_at = self.started_at.unwrap_or_else(SystemTime::now);
        Ok(Outcome::Ended(Ended {
            exit_code: code,
            signal: exit.signal.filter(|_| context.status.is_none()),
            cause,
            wall: exit.wall,
            cpu: exit.cpu,
            peak_memory_bytes: peak.unwrap_or(exit.peak_memory_bytes),
            switches: exit.switches,
            started_at,
            // The wall clock may have been set back, and the start is received slightly later.
            ended_at: (started_at + exit.wall).min(SystemTime::now()).max(started_at),
            stdout_bytes,
            stderr_bytes,
        }))
    }
}

impl RunContext {
    /// The lengths of standard output and standard error; `None` if one cannot be read.
    fn lengths(&self) -> [Option<u64>; 2] {
        [&self.stdout, &self.stderr].map(|log| {
            log.len().inspect_err(|error| tracing::debug!(%error, "cannot read the length of an output")).ok()
        })
    }

    /// The cause, if a stream has more bytes than allowed.
    fn too_large(&self, [stdout, stderr]: [Option<u64>; 2]) -> Option<Cause> {
        let mut streams = [(Stream::Stdout, stdout), (Stream::Stderr, stderr)].into_iter();
        streams.find_map(|(stream, length)| {
            let bytes = length.filter(|length| *length > self.run.output_bytes_max)?;
            Some(Cause::OutputTooLarge(stream, bytes))
        })
    }

    /// Classifies a kill by the kernel because memory ran out: the command's own limit, unless it was given less.
    fn out_of_memory(&self, peak: Option<u64>) -> Cause {
        let given = self.run.memory_bytes_max;
        match self.run.limits.memory_bytes.filter(|own| given.is_none_or(|given| *own <= given)) {
            Some(allowed) => {
                let used = peak.unwrap_or_default().max(allowed.saturating_add(1));
                Cause::OverLimit(Over { limit: Limit::Memory, allowed, used })
            }
            None => Cause::OutOfMemory,
        }
    }

    /// Truncates a log of this length to the allowed one; returns the new length.
    fn cut(&self, log: &Log, length: Option<u64>) -> Result<u64, SandboxError> {
        let length = length.map_or_else(|| log.len(), Ok);
        length
            .and_then(|length| log.cut(length, self.run.output_bytes_max))
            .map_err(|source| SandboxError::file("truncating", log.path(), source))
    }

    /// Explains why bubblewrap ended without running the command, from its standard error.
    fn explain(&self) -> Result<Outcome, SandboxError> {
        let said = self.stderr.read_at(0, ERROR_BYTES_MAX);
        let said = said.map_err(|source| SandboxError::file("reading", self.stderr.path(), source))?;
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        let why = if said.contains("execvp") && said.contains("No such file") {
            NotStarted::NotFound
        } else if said.contains("execvp") && said.contains("Argument list too long") {
            NotStarted::TooLarge
        } else if said.contains("execvp") {
            NotStarted::NotExecutable
        } else if said.contains("Can't chdir") {
            NotStarted::WorkingDirectory
        } else {
            return Err(SandboxError::Bubblewrap { advice: crate::bubblewrap::advice(&said), said });
        };
        // The message is not output of the command. If it stays, it is only shown twice.
        let _ = self.stderr.cut(u64::MAX, 0);
        Ok(Outcome::NotStarted { why, message: said.trim_start_matches("bwrap: ").to_owned() })
    }
}

fn sum(lengths: [Option<u64>; 2]) -> u64 {
    lengths.into_iter().flatten().fold(0, u64::saturating_add)
}

fn longest(lengths: [Option<u64>; 2]) -> u64 {
    lengths.into_iter().flatten().max().unwrap_or_default()
}

/// Time until the next check of outputs that have grown by `grown` bytes in `elapsed`, and by `left` bytes more reach their
/// limit: half of the time that this takes at the same speed.
fn until_check(grown: u64, elapsed: Duration, left: u64) -> Duration {
    if grown == 0 {
        return CHECK_INTERVAL;
    }
    let seconds = elapsed.as_secs_f64() * (left as f64 / grown as f64) / 2.0;
    let until = Duration::try_from_secs_f64(seconds).unwrap_or(CHECK_INTERVAL);
    until.clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL)
}

/// The exit code from bubblewrap's status, `{ "exit-code": 3 }`. It is missing for a program that
/// could not be executed.
fn exit_code_in(status: &File) -> Option<i32> {
    let mut text = [0; 1024];
    let length = status.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(text.get(..length)?).ok()?;
    let (_, rest) = text.split_once("\"exit-code\":")?;
    rest.trim_start().split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_that_grow_fast_are_checked_before_they_reach_their_limit() {
        let second = Duration::from_secs(1);
        assert_eq!(until_check(0, second, 10), CHECK_INTERVAL);
        assert_eq!(until_check(1000, second, 100), Duration::from_millis(50));
        assert_eq!(until_check(u64::MAX, second, 0), CHECK_INTERVAL_MIN);
        assert_eq!(until_check(1, second, u64::MAX), CHECK_INTERVAL);
    }
}
