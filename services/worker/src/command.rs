//! Runs one command of a run under the shim, with its output on the bus, until it exits or is stopped.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use bus::ChunkFault;
use command_services::{CommandServices, Failure};
use model::{Attempt, BuildLimits, BuildRecord, Millis, OutputStream, Reason, ReasonCode};
use sandbox::{SandboxError, WorkspaceBounds, WorkspaceLimits, WorkspaceSandbox};
use service::{Step, crash_point};
use shim::{Cause as ExitCause, Command, Deadline, Event, Exit, Running, ShimError, SpawnErrorKind};
use telemetry::metrics::{Histogram, Label, observe};
use tokio::sync::watch;

use crate::{
    build_run::Run,
    build_secrets::BuildSecrets,
    console::Console,
    ending::{Ended, Ending},
    guard::Guard,
    limits,
    shared::Shared,
    stop::Stop,
};

/// Bytes that are kept of the end of what a program of the worker prints, and characters of its last line in a reason.
const TAIL: usize = 4096;
const LINE: usize = 300;

/// Where a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Outside of the sandbox of builds: a program of the worker that fetches sources.
    Preparation,
    /// In the sandbox of builds, if there is one.
    Build,
}

/// Runs `argv` with the variables `env` in the workspace of `run` until the command ends.
pub(crate) async fn run(
    run: &mut Run<'_>,
    place: Place,
    argv: Vec<String>,
    env: Vec<(String, String)>,
) -> Result<Ending, ChunkFault> {
    if run.stop.cause().is_some() {
        return Ok(run.stopped(None));
    }
    let (bounds, sandbox) = confinement(run, place);
    let own = run.own_parts();
    let workspace = &mut run.workspace;
    let command = Command {
        argv,
        env,
        cwd: workspace.folder.build.clone(),
        deadline: Some(*workspace.lease.deadline.borrow_and_update()),
    };
    let limits = workspace.shim.limits();
    let of_shim = match limits.begin(bounds) {
        Ok(limits) => limits,
        Err(error) => return Ok(Ending::not_limited(&error)),
    };
    let shim = match place {
        Place::Preparation => Ok(workspace.shim.plain()),
        Place::Build => tokio::select! {
            shim = workspace.shim.of_build(&workspace.folder, sandbox.as_ref(), &own) => shim,
            () = run.stop.wanted() => return Ok(Ending::stopped(run.stop.cause(), &run.shared.id, None)),
            () = tokio::time::sleep_until(run.timeout_at) => return Ok(Ending::TimedOut(None)),
        },
    };
    let begun = match shim {
        Ok(shim) => shim.run_limited(&command, workspace.warm, &of_shim).await,
        Err(error) => Err(error),
    };
    if place == Place::Build {
        run.secrets.as_mut().map(BuildSecrets::unstage);
    }
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
    let guard =
        Guard::start(running.control(), deadline, run.stop.clone(), limits.clone(), (run.timeout_at, grace));
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
        limits,
        allowed: run.limits,
        kills: run.shared.oom.before(),
        printed: 0,
        number: workspace.number,
        place,
        is_sandboxed: sandbox.is_some(),
        measured_memory: of_shim.memory_bytes,
        tail: Vec::new(),
        services: run.services.as_mut(),
        failure: None,
        deadline: workspace.lease.deadline.clone(),
    };
    let end = match watched.until_the_end().await {
        Ok(end) => end,
        Err(error) => {
            workspace.shim_lives = false;
            return Ok(Ending::shim_gone(&error));
        }
    };
    // Until the run is over, processes that the command left must not outlive the lease either.
    let Watched { running, guard, .. } = watched;
    workspace.guard = running.has_survivors().then_some(guard);
    end
}

/// The command line of a program of the worker, which may follow links of builds: where these have a sandbox, it writes in
/// the workspace of the build only.
pub(crate) fn confined(run: &Run<'_>, argv: Vec<String>) -> Result<Vec<String>, SandboxError> {
    let Some(sandbox) = run.sandbox() else { return Ok(argv) };
    let call = sandbox.bubblewrap.writing_in(run.workspace.folder.root())?;
    Ok(call.into_iter().map(|word| word.to_string_lossy().into_owned()).chain(argv).collect())
}

/// The limits and the sandbox of a command.
fn confinement(run: &Run<'_>, place: Place) -> (WorkspaceBounds, Option<Arc<WorkspaceSandbox>>) {
    match place {
        // Programs of the worker are not limited by what the build may use.
        Place::Preparation => (WorkspaceBounds::default(), None),
        Place::Build => (limits::bounds(&run.limits, &run.shared.settings), run.sandbox()),
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
    shared: &'a Shared,
    /// Limits of the workspace that apply to the command.
    limits: Arc<WorkspaceLimits>,
    allowed: BuildLimits,
    /// Processes that the kernel had killed for lack of memory before.
    kills: u64,
    /// Bytes that it has printed.
    printed: u64,
    /// Number of the workspace.
    number: u16,
    place: Place,
    is_sandboxed: bool,
    /// Its limit of memory if no control group enforces it: the kernel counts pages of files otherwise.
    measured_memory: Option<u64>,
    /// The end of what a program of the worker printed.
    tail: Vec<u8>,
    /// The services of the command.
    services: Option<&'a mut CommandServices>,
    /// Why the command has no services any more.
    failure: Option<Failure>,
    deadline: watch::Receiver<Deadline>,
}

impl Watched<'_> {
    /// Handles all events; fails if the shim dies.
    async fn until_the_end(&mut self) -> Result<Result<Ending, ChunkFault>, ShimError> {
        loop {
            let event = tokio::select! {
                event = self.running.next_event() => event?.ok_or(ShimError::Gone)?,
                failure = failure_of(&mut self.services), if self.failure.is_none() => {
                    self.failure = Some(failure);
                    self.guard.kill().await;
                    continue;
                }
                () = self.console.held_back() => {
                    let released = self.console.release().await;
                    self.note_fault(released).await;
                    continue;
                }
            };
            if let Some(end) = self.handle_event(event).await {
                return Ok(end);
            }
        }
    }

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
                let left = self.allowed.output_bytes.map(|most| most.saturating_sub(self.printed));
                let is_killed = self.prints_too_much();
                self.printed = self.printed.saturating_add(data.len() as u64);
                if self.prints_too_much() && !is_killed {
                    self.guard.kill().await;
                }
                self.note_last_line(&data);
                let kept = left.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
                let data = data.slice(..kept.min(data.len()));
                if self.fault.is_none() && !data.is_empty() {
                    let written = self.console.write(stream_of(stream), data).await;
                    self.note_fault(written).await;
                }
                None
            }
            // With its own limit reached, the build is the reason.
            Event::SpawnFailed { kind: SpawnErrorKind::Resources, message }
                if !self.limits.is_over_processes() =>
            {
                Some(Ok(Ending::GiveBack(Reason { code: ReasonCode::WorkerFault, message })))
            }
            Event::SpawnFailed { message, .. } => Some(Ok(Ending::not_started(if self.is_sandboxed {
                format!(
                    "{message}; the sandbox of builds shows only system folders and those of sandbox_read_only"
                )
            } else {
                message
            }))),
            Event::Exited(exit) => {
                self.shared.usage.command_ended(self.number, &exit);
                if self.fault.is_none() {
                    self.fault = self.console.end_streams().await.err();
                }
                Some(match self.fault.take() {
                    Some(fault) => Err(fault),
                    None => Ok(self.exited(exit)),
                })
            }
        }
    }

    /// Notes that the console is lost; then the command must end.
    async fn note_fault(&mut self, written: Result<(), ChunkFault>) {
        if let Err(fault) = written {
            self.fault = Some(fault);
            self.guard.kill().await;
        }
    }

    fn exited(&self, exit: Exit) -> Ending {
        // A passed deadline means that the lease was not renewed.
        let is_lost = self.failure.is_some() && self.deadline.borrow().has_passed();
        let stopped = self.stop.cause().is_some() || exit.cause == ExitCause::Deadline || is_lost;
        let said = last_line(&self.tail);
        let mut ended = Ended { exit, started_at_us: self.started_at_us, over: None, said };
        if stopped {
            return Ending::stopped(self.stop.cause(), &self.shared.id, Some(ended));
        }
        if self.guard.has_timed_out() {
            return Ending::TimedOut(Some(ended));
        }
        if let Some(failure) = &self.failure {
            return Ending::of_services(failure.clone(), Some(ended));
        }
        ended.over = if self.prints_too_much() {
            self.allowed.output_bytes.map(limits::too_much_output)
        } else {
            self.exceeded(&ended)
                .and_then(limits::over)
                .or_else(|| limits::too_much_memory(self.measured_memory?, ended.exit.peak_memory_bytes))
        };
        match &ended.over {
            Some(reason)
                if reason.code == ReasonCode::OutOfMemory
                    && limits::may_have_more(self.record, &self.allowed, &self.shared.settings) =>
            {
                Ending::GiveBack(reason.clone())
            }
            None if self.was_killed_with_others(&ended) => {
                self.shared.workspaces.note_killed();
                Ending::GiveBack(Reason {
                    code: ReasonCode::WorkerOutOfMemory,
                    message: "the machine of the worker ran out of memory, and the kernel killed the build"
                        .to_owned(),
                })
            }
            Some(_) | None => Ending::Exited(ended),
        }
    }

    /// Keeps the end of what a program of the worker prints.
    fn note_last_line(&mut self, data: &[u8]) {
        if self.place == Place::Preparation {
            self.tail.extend_from_slice(data);
            let drop = self.tail.len().saturating_sub(TAIL);
            self.tail.drain(..drop);
        }
    }

    fn prints_too_much(&self) -> bool {
        self.allowed.output_bytes.is_some_and(|most| self.printed > most)
    }

    /// Whether the kernel killed the command because the builds of this machine together used all of its memory.
    fn was_killed_with_others(&self, ended: &Ended) -> bool {
        let code = ended.exit.exit_code.or(ended.exit.signal.map(|signal| 128 + signal));
        code.is_some_and(|code| self.shared.oom.explain(code, self.kills))
            && self.shared.workspaces.busy().len() > 1
    }

    /// The limit that a command which did not succeed exceeded, if any.
    fn exceeded(&self, ended: &Ended) -> Option<ExitCause> {
        if ended.is_success() {
            return None;
        }
        let seen = Some(ended.exit.cause).filter(|cause| matches!(cause, ExitCause::OverLimit(_)));
        seen.or_else(|| self.limits.exceeded())
    }
}

/// Returns when a service has ended; never if there is none.
async fn failure_of(services: &mut Option<&mut CommandServices>) -> Failure {
    match services {
        Some(services) => services.failure().await,
        None => std::future::pending().await,
    }
}

/// The last line that is not empty, without control characters.
fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(LINE).collect()
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
