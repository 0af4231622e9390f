//! One run of a build, from its claim to its end.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bus::{ChunkFault, GuardedWriter};
use model::{BuildRecord, LogSummary, Millis, OutputStream, Reason, ReasonCode, ToolEvent};
use service::{Step, crash_point};
use shim::{Cause as ExitCause, Command, Event, Exit, Shim, ShimError};
use telemetry::metrics::{Histogram, observe};
use tokio::time::Instant;
use tracing::{Instrument as _, debug, debug_span, warn};

use crate::{
    Shared,
    claim::Claimed,
    console::{Console, Limits},
    environment, finish,
    folder::RunFolder,
    lease_keeper::LeaseKeeper,
    outputs, prepare,
    stop::{Cause, Stop},
};

/// How a run came to its end.
pub(crate) enum Ending {
    /// The command ended.
    Exited(Ended),
    /// The build failed before its command ran, or could not be kept.
    Failed(Reason, Option<Ended>),
    /// It ran longer than it may.
    TimedOut(Option<Ended>),
    /// The worker goes away, or has a fault: the build is to run elsewhere.
    GiveBack(Reason),
    /// The build is not ours any more: nothing is written.
    NotOurs,
}

/// What is known of a command that ran.
#[derive(Clone)]
pub(crate) struct Ended {
    pub(crate) exit: Exit,
    pub(crate) started_at_us: Option<u64>,
}

/// Everything that the steps of a run share.
struct Run<'a> {
    shared: &'a Shared,
    shim: &'a mut Shim,
    shim_lives: bool,
    stop: &'a Stop,
    keeper: &'a mut LeaseKeeper,
    console: &'a mut Console,
    folder: &'a RunFolder,
    record: &'a BuildRecord,
    timeout_at: Instant,
}

/// What became of one command.
enum CommandEnd {
    Exited(Ended),
    NotStarted(String),
    TimedOut(Ended),
    Stopped,
    ShimGone(ShimError),
}

/// Runs a claimed build. Says whether the shim can be used again.
pub(crate) async fn run(
    shared: &Arc<Shared>,
    number: u16,
    shim: &mut Shim,
    claimed: Claimed,
    stop: Stop,
) -> bool {
    let span = debug_span!("invocation", build = %claimed.key, attempt = claimed.record.attempt.0);
    telemetry::set_parent(&span, claimed.record.build.traceparent.as_deref(), None);
    run_inside(shared, number, shim, claimed, stop).instrument(span).await
}

async fn run_inside(
    shared: &Arc<Shared>,
    number: u16,
    shim: &mut Shim,
    claimed: Claimed,
    stop: Stop,
) -> bool {
    let Claimed { key, record, started_at, lease, deadline, lost } = claimed;
    let bus = &shared.context.bus;
    let settings = &shared.context.settings;
    if let Some(cause) = lost {
        stop.now(cause);
    }
    let mut keeper = LeaseKeeper::start(bus.clone(), lease, deadline, stop.clone());
    let folder = match shared.folder.run_folder(number) {
        Ok(folder) => folder,
        Err(error) => {
            let reason = prepare::broken("making the workspace", &error);
            let ending = Ending::Failed(reason, None);
            finish::finish(
                shared,
                number,
                &record,
                started_at,
                keeper,
                ending,
                (Vec::new(), LogSummary::default()),
            )
            .await;
            return true;
        }
    };
    let writer = GuardedWriter::new(bus.clone(), key, record.attempt, started_at);
    let limits = Limits { bus: settings.console_bytes_max, total: settings.log_bytes_max };
    let mut console = Console::new(writer, limits, folder.log.clone());
    let timeout_at = Instant::now() + Duration::from_secs(record.build.timeout_seconds);
    let mut run = Run {
        shared,
        shim,
        shim_lives: true,
        stop: &stop,
        keeper: &mut keeper,
        console: &mut console,
        folder: &folder,
        record: &record,
        timeout_at,
    };
    let mut ending = run.steps().await;
    let shim_lives = run.shim_lives;
    crash_point(Step::CommandEnded);
    let mut kept = Vec::new();
    if let Ending::Exited(ended) = &ending {
        let build = &folder.build;
        match outputs::keep(&shared.store, build, &record.build.outputs, settings.output_bytes_max).await {
            Ok(files) => kept = files,
            Err(reason) => {
                let _ = console.say(&reason.message).await;
                ending = Ending::Failed(reason, Some(ended.clone()));
            }
        }
    }
    let log = console.finish(&shared.store).await.unwrap_or_else(|error| {
        warn!(error = telemetry::error_chain(&error), "the rest of a log was not kept");
        LogSummary::default()
    });
    crash_point(Step::OutputsKept);
    let succeeded = matches!(&ending, Ending::Exited(ended) if ended.exit.exit_code == Some(0));
    finish::finish(shared, number, &record, started_at, keeper, ending, (kept, log)).await;
    folder.clear(settings.keep_failed_workspaces && !succeeded);
    shim_lives
}

impl Run<'_> {
    /// Prepares the workspace and runs the command.
    async fn steps(&mut self) -> Ending {
        let build = &self.record.build;
        if !build.context.is_empty() {
            match self.prepare().instrument(debug_span!("prepare")).await {
                Ok(None) => {}
                Ok(Some(ending)) => return ending,
                Err(fault) => return self.fault(fault),
            }
        }
        crash_point(Step::WorkspacePrepared);
        match self.command(build.command.clone()).instrument(debug_span!("command")).await {
            Err(fault) => self.fault(fault),
            Ok(CommandEnd::Exited(ended)) => Ending::Exited(ended),
            Ok(end) => self.ending(end),
        }
    }

    async fn prepare(&mut self) -> Result<Option<Ending>, ChunkFault> {
        let begun = Instant::now();
        let steps = tokio::select! {
            steps = prepare::steps(&self.record.build.context, self.folder) => steps,
            () = self.stop.wanted() => return Ok(Some(self.stopped())),
            () = tokio::time::sleep_until(self.timeout_at) => return Ok(Some(Ending::TimedOut(None))),
        };
        let steps = match steps {
            Ok(steps) => steps,
            Err(reason) => {
                self.console.say(&reason.message).await?;
                return Ok(Some(Ending::Failed(reason, None)));
            }
        };
        for step in steps {
            match self.command(step.argv).await? {
                CommandEnd::Exited(ended) if ended.exit.exit_code == Some(0) => {}
                CommandEnd::Exited(ended) => {
                    let reason =
                        prepare::unavailable(format!("{} failed: {}", step.what, exit_text(&ended.exit)));
                    self.console.say(&reason.message).await?;
                    return Ok(Some(Ending::Failed(reason, None)));
                }
                end => return Ok(Some(self.ending(end))),
            }
        }
        let event = ToolEvent::WorkspacePrepared {
            attempt: self.record.attempt,
            wall_seconds: begun.elapsed().as_secs_f64(),
        };
        self.console.tool(&event).await?;
        Ok(None)
    }

    /// Runs one command to its end.
    async fn command(&mut self, argv: Vec<String>) -> Result<CommandEnd, ChunkFault> {
        if self.stop.cause().is_some() {
            return Ok(CommandEnd::Stopped);
        }
        let command = Command {
            argv,
            env: environment::variables(self.record, self.folder),
            cwd: self.folder.build.clone(),
            deadline: Some(*self.keeper.deadline.borrow_and_update()),
        };
        let grace = Duration::from_millis(self.shared.context.settings.kill_grace_ms);
        let mut running = match self.shim.run(&command).await {
            Ok(running) => running,
            Err(error @ ShimError::TooLarge { .. }) => return Ok(CommandEnd::NotStarted(error.to_string())),
            Err(error) => return Ok(CommandEnd::ShimGone(error)),
        };
        let control = running.control();
        let (mut timed_out, mut told) = (false, false);
        let mut started_at_us = None;
        let mut fault = None;
        loop {
            let event = tokio::select! {
                event = running.next_event() => event,
                Ok(()) = self.keeper.deadline.changed() => {
                    let deadline = *self.keeper.deadline.borrow_and_update();
                    let _ = control.renew(deadline).await;
                    continue;
                }
                () = self.stop.wanted(), if !told => {
                    told = true;
                    // A run that is not ours any more has no time to spare.
                    let drained = self.stop.cause() == Some(Cause::Drained);
                    let _ = control.kill(if drained { grace } else { grace.min(Duration::from_secs(1)) }).await;
                    continue;
                }
                () = tokio::time::sleep_until(self.timeout_at), if !timed_out => {
                    timed_out = true;
                    let _ = control.kill(grace).await;
                    continue;
                }
            };
            match event {
                Ok(Some(Event::Started { at, .. })) => {
                    crash_point(Step::CommandSpawned);
                    started_at_us = micros(at);
                    tell_start(self.record, at);
                }
                Ok(Some(Event::Output { stream, data })) => {
                    if fault.is_none()
                        && let Err(error) = self.console.write(stream_of(stream), data).await
                    {
                        fault = Some(error);
                        let _ = control.kill(Duration::ZERO).await;
                    }
                }
                Ok(Some(Event::SpawnFailed { message, .. })) => return Ok(CommandEnd::NotStarted(message)),
                Ok(Some(Event::Exited(exit))) => {
                    if let Some(fault) = fault {
                        return Err(fault);
                    }
                    let ended = Ended { exit, started_at_us };
                    return Ok(exited(self.stop, ended, timed_out));
                }
                Ok(None) => {
                    return Ok(CommandEnd::ShimGone(ShimError::Gone));
                }
                Err(error) => return Ok(CommandEnd::ShimGone(error)),
            }
        }
    }

    fn ending(&mut self, end: CommandEnd) -> Ending {
        match end {
            CommandEnd::Exited(ended) => Ending::Exited(ended),
            CommandEnd::TimedOut(ended) => Ending::TimedOut(Some(ended)),
            CommandEnd::NotStarted(message) => {
                Ending::Failed(Reason { code: ReasonCode::CommandNotStarted, message }, None)
            }
            CommandEnd::Stopped => self.stopped(),
            CommandEnd::ShimGone(error) => {
                self.shim_lives = false;
                let message = format!("the shim of the workspace ended: {}", telemetry::error_chain(&error));
                Ending::GiveBack(Reason { code: ReasonCode::WorkerFault, message })
            }
        }
    }

    fn stopped(&self) -> Ending {
        match self.stop.cause() {
            Some(Cause::Drained) => {
                let message = format!("worker {} was told to stop", self.shared.id);
                Ending::GiveBack(Reason { code: ReasonCode::WorkerDrained, message })
            }
            Some(Cause::EndedElsewhere | Cause::LeaseLost) | None => Ending::NotOurs,
        }
    }

    fn fault(&mut self, fault: ChunkFault) -> Ending {
        debug!(build = %self.record.build.id, error = telemetry::error_chain(&fault), "the run ends");
        Ending::NotOurs
    }
}

fn exited(stop: &Stop, ended: Ended, timed_out: bool) -> CommandEnd {
    match (stop.cause(), ended.exit.cause) {
        (Some(_), _) => CommandEnd::Stopped,
        // The deadline of the lease passed without a renewal.
        (None, ExitCause::Deadline) => CommandEnd::Stopped,
        (None, _) if timed_out => CommandEnd::TimedOut(ended),
        (None, _) => CommandEnd::Exited(ended),
    }
}

fn tell_start(record: &BuildRecord, at: SystemTime) {
    if record.attempt == model::Attempt::FIRST {
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
