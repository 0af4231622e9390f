//! Runs one command of a run under the shim, with its output on the bus, until it exits or is stopped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bus::{ChunkFault, FarmClock};
use model::{Attempt, BuildRecord, Millis, OutputStream};
use service::{Step, crash_point};
use shim::{Cause as ExitCause, Command, Control, Deadline, Event, Exit, Running, ShimError};
use telemetry::metrics::{Histogram, observe};
use tokio::{sync::watch, task::JoinHandle, time::Instant};

use crate::{
    console::Console,
    run::Run,
    stop::{Cause, Stop},
    usage::Usage,
};

/// How one command ended.
pub(crate) enum CommandEnd {
    /// The command exited without being stopped.
    Exited(Ended),
    /// The command could not be started, for this reason.
    NotStarted(String),
    /// The command exceeded its timeout.
    TimedOut(Ended),
    /// The run was stopped; with the end of the command, if it had started.
    Stopped(Option<Ended>),
    /// The shim died, and the command with it.
    ShimGone(ShimError),
}

/// Measurements of a command that ran.
#[derive(Clone)]
pub(crate) struct Ended {
    pub(crate) exit: Exit,
    pub(crate) started_at_us: Option<u64>,
}

/// Runs `argv` with the variables `env` in the workspace of `run` until the command ends.
pub(crate) async fn run(
    run: &mut Run<'_>,
    argv: Vec<String>,
    env: Vec<(String, String)>,
) -> Result<CommandEnd, ChunkFault> {
    if run.stop.cause().is_some() {
        return Ok(CommandEnd::Stopped(None));
    }
    let command = Command {
        argv,
        env,
        cwd: run.folder.build.clone(),
        deadline: Some(*run.keeper.deadline.borrow_and_update()),
    };
    let begun = if run.warm { run.shim.run_and_keep(&command).await } else { run.shim.run(&command).await };
    let running = match begun {
        Ok(running) => running,
        Err(error @ ShimError::TooLarge { .. }) => return Ok(CommandEnd::NotStarted(error.to_string())),
        Err(error) => return Ok(CommandEnd::ShimGone(error)),
    };
    // The guard of the previous command's remaining processes is no longer needed.
    run.guard = None;
    let grace = Duration::from_millis(run.shared.context.settings.kill_grace_ms);
    let deadline = run.keeper.deadline.clone();
    let guard = Guard::start(running.control(), deadline, run.stop.clone(), run.timeout_at, grace);
    run.shared.usage.command_started(run.number, running.control());
    let mut watched = Watched {
        running,
        guard,
        console: run.console,
        stop: run.stop,
        record: run.record,
        started_at_us: None,
        fault: None,
        usage: (&run.shared.usage, run.number),
        clock: run.shared.context.bus.clock(),
    };
    let end = loop {
        match watched.running.next_event().await {
            Ok(Some(event)) => {
                if let Some(end) = watched.handle_event(event).await {
                    break end;
                }
            }
            Ok(None) => return Ok(CommandEnd::ShimGone(ShimError::Gone)),
            Err(error) => return Ok(CommandEnd::ShimGone(error)),
        }
    };
    // Until the run is over, processes that the command left must not outlive the lease either.
    let Watched { running, guard, .. } = watched;
    run.guard = running.has_survivors().then_some(guard);
    end
}

/// Renews the deadline of a command and kills it when it must end, independently of what the run waits for.
pub(crate) struct Guard {
    control: Control,
    timed_out: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Guard {
    fn start(
        control: Control,
        deadline: watch::Receiver<Deadline>,
        stop: Stop,
        timeout_at: Instant,
        grace: Duration,
    ) -> Self {
        let timed_out = Arc::new(AtomicBool::new(false));
        let timeout = (timeout_at, timed_out.clone());
        let task = tokio::spawn(guard(control.clone(), deadline, stop, timeout, grace));
        Self { control, timed_out, task }
    }

    /// Ends the run: processes that its command left have no deadline any more. Returns whether
    /// the shim confirmed this.
    pub(crate) async fn release(mut self) -> bool {
        self.task.abort();
        // A renewal in flight must not arrive after this.
        let _ = (&mut self.task).await;
        self.control.renew(Deadline::NEVER).await.is_ok()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn guard(
    control: Control,
    mut deadline: watch::Receiver<Deadline>,
    stop: Stop,
    (timeout_at, timed_out): (Instant, Arc<AtomicBool>),
    grace: Duration,
) {
    let mut stopping = false;
    loop {
        tokio::select! {
            Ok(()) = deadline.changed() => {
                let renewed = *deadline.borrow_and_update();
                // If the shim is gone, the loop over its events reports that.
                let _ = control.renew(renewed).await;
            }
            () = stop.wanted(), if !stopping => {
                stopping = true;
                // A run that lost its lease gets at most a short grace period.
                let drained = stop.cause() == Some(Cause::Drained);
                let grace = if drained { grace } else { grace.min(Duration::from_secs(1)) };
                // If the shim is gone, its processes are dead too.
                let _ = control.kill(grace).await;
            }
            () = tokio::time::sleep_until(timeout_at), if !timed_out.load(Ordering::Relaxed) => {
                timed_out.store(true, Ordering::Relaxed);
                // If the shim is gone, its processes are dead too.
                let _ = control.kill(grace).await;
            }
            else => return,
        }
    }
}

struct Watched<'a> {
    running: Running<'a>,
    guard: Guard,
    console: &'a mut Console,
    stop: &'a Stop,
    record: &'a BuildRecord,
    started_at_us: Option<u64>,
    fault: Option<ChunkFault>,
    /// Where to report its use, and for which workspace.
    usage: (&'a Usage, u16),
    clock: &'a FarmClock,
}

impl Watched<'_> {
    /// Handles an event; returns the end of the command with the last one.
    async fn handle_event(&mut self, event: Event) -> Option<Result<CommandEnd, ChunkFault>> {
        match event {
            Event::Started { at, .. } => {
                crash_point(Step::CommandSpawned);
                let at = self.clock.of_local(at.system_time());
                self.started_at_us = micros(at);
                record_start(self.record, at);
                None
            }
            Event::Output { stream, data } => {
                if self.fault.is_none()
                    && let Err(fault) = self.console.write(stream_of(stream), data).await
                {
                    self.fault = Some(fault);
                    // If the shim is gone, its processes are dead too.
                    let _ = self.guard.control.kill(Duration::ZERO).await;
                }
                None
            }
            Event::SpawnFailed { message, .. } => Some(Ok(CommandEnd::NotStarted(message))),
            Event::Exited(exit) => {
                let (usage, number) = self.usage;
                usage.command_ended(number, &exit);
                Some(match self.fault.take() {
                    Some(fault) => Err(fault),
                    None => Ok(self.exited(exit)),
                })
            }
        }
    }

    fn exited(&self, exit: Exit) -> CommandEnd {
        // A passed deadline means that the lease was not renewed.
        let stopped = self.stop.cause().is_some() || exit.cause == ExitCause::Deadline;
        let ended = Ended { exit, started_at_us: self.started_at_us };
        if stopped {
            return CommandEnd::Stopped(Some(ended));
        }
        if self.guard.timed_out.load(Ordering::Relaxed) {
            CommandEnd::TimedOut(ended)
        } else {
            CommandEnd::Exited(ended)
        }
    }
}

/// Records how long a build waited for its start.
pub(crate) fn record_start(record: &BuildRecord, at: SystemTime) {
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

/// How a command ended, as text for the user.
pub(crate) fn exit_text(exit: &Exit) -> String {
    match (exit.exit_code, exit.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "unknown exit status".to_owned(),
    }
}
