//! Runs one command of a run under the shim, with its output on the bus, until it exits or is stopped.

use std::time::{SystemTime, UNIX_EPOCH};

use bus::ChunkFault;
use model::{Attempt, BuildRecord, Millis, OutputStream};
use service::{Step, crash_point};
use shim::{Cause as ExitCause, Command, Event, Exit, Running, ShimError};
use telemetry::metrics::{Histogram, Label, observe};

use crate::{
    build_run::Run,
    console::Console,
    ending::{Ended, Ending},
    guard::Guard,
    shared::Shared,
    stop::Stop,
};

/// Runs `argv` with the variables `env` in the workspace of `run` until the command ends.
pub(crate) async fn run(
    run: &mut Run<'_>,
    argv: Vec<String>,
    env: Vec<(String, String)>,
) -> Result<Ending, ChunkFault> {
    if run.stop.cause().is_some() {
        return Ok(run.stopped(None));
    }
    let workspace = &mut run.workspace;
    let command = Command {
        argv,
        env,
        cwd: workspace.folder.build.clone(),
        deadline: Some(*workspace.lease.deadline.borrow_and_update()),
    };
    let shim = &mut workspace.shim;
    let begun = if workspace.warm { shim.run_and_keep(&command).await } else { shim.run(&command).await };
    let running = match begun {
        Ok(running) => running,
        Err(error @ ShimError::TooLarge { .. }) => return Ok(Ending::not_started(error.to_string())),
        Err(error) => {
            workspace.shim_lives = false;
            return Ok(Ending::shim_gone(&error));
        }
    };
    // The guard of the previous command's remaining processes is no longer needed.
    workspace.guard = None;
    let grace = run.shared.settings.kill_grace;
    let deadline = workspace.lease.deadline.clone();
    let guard = Guard::start(running.control(), deadline, run.stop.clone(), run.timeout_at, grace);
    run.shared.usage.command_started(workspace.number, running.control());
    let mut watched = Watched {
        running,
        guard,
        console: run.console,
        stop: run.stop,
        record: run.record,
        started_at_us: None,
        fault: None,
        shared: run.shared,
        number: workspace.number,
    };
    let end = loop {
        let error = match watched.running.next_event().await {
            Ok(Some(event)) => match watched.handle_event(event).await {
                Some(end) => break end,
                None => continue,
            },
            Ok(None) => ShimError::Gone,
            Err(error) => error,
        };
        workspace.shim_lives = false;
        return Ok(Ending::shim_gone(&error));
    };
    // Until the run is over, processes that the command left must not outlive the lease either.
    let Watched { running, guard, .. } = watched;
    workspace.guard = running.has_survivors().then_some(guard);
    end
}

struct Watched<'a> {
    running: Running<'a>,
    guard: Guard,
    console: &'a mut Console,
    stop: &'a Stop,
    record: &'a BuildRecord,
    started_at_us: Option<u64>,
    fault: Option<ChunkFault>,
    shared: &'a Shared,
    /// Number of the workspace.
    number: u16,
}

impl Watched<'_> {
    /// Handles an event; returns the end of the command with the last one.
    async fn handle_event(&mut self, event: Event) -> Option<Result<Ending, ChunkFault>> {
        match event {
            Event::Started { at, .. } => {
                crash_point(Step::CommandSpawned);
                let at = self.shared.context.bus.clock().of_local(at.system_time());
                self.started_at_us = micros(at);
                record_start(self.record, at);
                None
            }
            Event::Output { stream, data } => {
                if self.fault.is_none()
                    && let Err(fault) = self.console.write(stream_of(stream), data).await
                {
                    self.fault = Some(fault);
                    self.guard.kill().await;
                }
                None
            }
            Event::SpawnFailed { message, .. } => Some(Ok(Ending::not_started(message))),
            Event::Exited(exit) => {
                self.shared.usage.command_ended(self.number, &exit);
                Some(match self.fault.take() {
                    Some(fault) => Err(fault),
                    None => Ok(self.exited(exit)),
                })
            }
        }
    }

    fn exited(&self, exit: Exit) -> Ending {
        // A passed deadline means that the lease was not renewed.
        let stopped = self.stop.cause().is_some() || exit.cause == ExitCause::Deadline;
        let ended = Ended { exit, started_at_us: self.started_at_us };
        if stopped {
            return Ending::stopped(self.stop.cause(), &self.shared.id, Some(ended));
        }
        if self.guard.has_timed_out() { Ending::TimedOut(Some(ended)) } else { Ending::Exited(ended) }
    }
}

/// Records how long a build waited for its start.
pub(crate) fn record_start(record: &BuildRecord, at: SystemTime) {
    if record.attempt == Attempt::FIRST {
        let waited = Millis::from(at).since(record.build.submitted_at_ms);
        let priority = record.build.priority.as_str();
        observe(Histogram::BuildStartSeconds, &[(Label::Priority, priority)], waited);
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
