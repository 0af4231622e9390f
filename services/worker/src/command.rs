//! One command of a run: under the shim, with its output on the bus, until it ends or is made to.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bus::ChunkFault;
use model::{Attempt, BuildRecord, Millis, OutputStream};
use service::{Step, crash_point};
use shim::{Cause as ExitCause, Command, Control, Event, Exit, Running, ShimError};
use telemetry::metrics::{Histogram, observe};
use tokio::time::Instant;

use crate::{
    console::Console,
    environment,
    lease_keeper::LeaseKeeper,
    run::Run,
    stop::{Cause, Stop},
};

/// What became of one command.
pub(crate) enum CommandEnd {
    /// It ended by itself.
    Exited(Ended),
    /// It could not be started.
    NotStarted(String),
    /// It ran longer than it may.
    TimedOut(Ended),
    /// The run is to end.
    Stopped,
    /// The shim died, and the command with it.
    ShimGone(ShimError),
}

/// What is known of a command that ran.
#[derive(Clone)]
pub(crate) struct Ended {
    pub(crate) exit: Exit,
    pub(crate) started_at_us: Option<u64>,
}

/// Runs `argv` in the workspace of `run` to its end.
pub(crate) async fn run(run: &mut Run<'_>, argv: Vec<String>) -> Result<CommandEnd, ChunkFault> {
    if run.stop.cause().is_some() {
        return Ok(CommandEnd::Stopped);
    }
    let command = Command {
        argv,
        env: environment::variables(run.record, run.folder),
        cwd: run.folder.build.clone(),
        deadline: Some(*run.keeper.deadline.borrow_and_update()),
    };
    let running = match run.shim.run(&command).await {
        Ok(running) => running,
        Err(error @ ShimError::TooLarge { .. }) => return Ok(CommandEnd::NotStarted(error.to_string())),
        Err(error) => return Ok(CommandEnd::ShimGone(error)),
    };
    let control = running.control();
    let mut watched = Watched {
        running,
        control,
        keeper: run.keeper,
        console: run.console,
        stop: run.stop,
        record: run.record,
        grace: Duration::from_millis(run.shared.context.settings.kill_grace_ms),
        timeout_at: run.timeout_at,
        timed_out: false,
        stopping: false,
        started_at_us: None,
        fault: None,
    };
    loop {
        match watched.next().await {
            Ok(Some(event)) => {
                if let Some(end) = watched.take(event).await {
                    return end;
                }
            }
            Ok(None) => return Ok(CommandEnd::ShimGone(ShimError::Gone)),
            Err(error) => return Ok(CommandEnd::ShimGone(error)),
        }
    }
}

/// A command that runs.
struct Watched<'a> {
    running: Running<'a>,
    control: Control,
    keeper: &'a mut LeaseKeeper,
    console: &'a mut Console,
    stop: &'a Stop,
    record: &'a BuildRecord,
    grace: Duration,
    timeout_at: Instant,
    timed_out: bool,
    stopping: bool,
    started_at_us: Option<u64>,
    fault: Option<ChunkFault>,
}

impl Watched<'_> {
    /// The command's next event; meanwhile its deadline is renewed and it is killed when it must end.
    async fn next(&mut self) -> Result<Option<Event>, ShimError> {
        loop {
            tokio::select! {
                event = self.running.next_event() => return event,
                Ok(()) = self.keeper.deadline.changed() => {
                    let deadline = *self.keeper.deadline.borrow_and_update();
                    let _ = self.control.renew(deadline).await;
                }
                () = self.stop.wanted(), if !self.stopping => {
                    self.stopping = true;
                    // A run that is not ours any more has no time to spare.
                    let drained = self.stop.cause() == Some(Cause::Drained);
                    let grace = if drained { self.grace } else { self.grace.min(Duration::from_secs(1)) };
                    let _ = self.control.kill(grace).await;
                }
                () = tokio::time::sleep_until(self.timeout_at), if !self.timed_out => {
                    self.timed_out = true;
                    let _ = self.control.kill(self.grace).await;
                }
            }
        }
    }

    /// Takes an event; the end of the command, when it was the last.
    async fn take(&mut self, event: Event) -> Option<Result<CommandEnd, ChunkFault>> {
        match event {
            Event::Started { at, .. } => {
                crash_point(Step::CommandSpawned);
                self.started_at_us = micros(at);
                tell_start(self.record, at);
                None
            }
            Event::Output { stream, data } => {
                if self.fault.is_none()
                    && let Err(fault) = self.console.write(stream_of(stream), data).await
                {
                    self.fault = Some(fault);
                    let _ = self.control.kill(Duration::ZERO).await;
                }
                None
            }
            Event::SpawnFailed { message, .. } => Some(Ok(CommandEnd::NotStarted(message))),
            Event::Exited(exit) => Some(match self.fault.take() {
                Some(fault) => Err(fault),
                None => Ok(self.exited(exit)),
            }),
        }
    }

    fn exited(&self, exit: Exit) -> CommandEnd {
        // A deadline that passed is a lease that was not renewed.
        if self.stop.cause().is_some() || exit.cause == ExitCause::Deadline {
            return CommandEnd::Stopped;
        }
        let ended = Ended { exit, started_at_us: self.started_at_us };
        if self.timed_out { CommandEnd::TimedOut(ended) } else { CommandEnd::Exited(ended) }
    }
}

fn tell_start(record: &BuildRecord, at: SystemTime) {
    if record.attempt == Attempt::FIRST {
        let waited = Millis::from(at).since(record.build.submitted_at_ms);
        observe(Histogram::BuildStartSeconds, &[], waited);
    }
}

fn micros(at: SystemTime) -> Option<u64> {
    u64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_micros()).ok()
}

fn stream_of(stream: shim::Stream) -> OutputStream {
    match stream {
        shim::Stream::Stdout => OutputStream::Stdout,
        shim::Stream::Stderr => OutputStream::Stderr,
    }
}

/// How a command ended, for people.
pub(crate) fn exit_text(exit: &Exit) -> String {
    match (exit.exit_code, exit.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    }
}
