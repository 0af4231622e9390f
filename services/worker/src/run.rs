//! One run of a build attempt, from its claim to its end.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bus::{ChunkFault, GuardedWriter};
use model::{BuildRecord, LogSummary, Reason, ReasonCode, WorkspaceKeys, WorkspaceKind};
use policy::workspace::live_keys;
use service::{Step, crash_point};
use shim::Shim;
use tokio::time::Instant;
use tracing::{Instrument as _, debug, debug_span, warn};

use crate::{
    Shared,
    claim::Claimed,
    command::{self, CommandEnd, Ended, Guard, exit_text},
    console::{Console, Limits},
    environment,
    finish::{Finish, RunResults},
    folder::RunFolder,
    job::{JobEnd, shortcoming},
    lease_keeper::LeaseKeeper,
    outputs::{self, Outputs},
    prepare::{self, WorkspaceOrigin},
    stop::{Cause, Stop},
    warm::WarmWorkspace,
};

/// How long a run waits for room in the store before it is requeued.
const ROOM_PATIENCE: Duration = Duration::from_secs(30);
const ROOM_RETRY: Duration = Duration::from_secs(1);
/// Maximum number of console lines about outputs; the result lists more.
const WARNINGS_MAX: usize = 20;

/// How a run ended.
pub(crate) enum Ending {
    Exited(Ended),
    /// All tasks of its job ended, or can never start.
    Tasks {
        /// Folder with the outputs that its globs match.
        outputs: PathBuf,
    },
    /// The build failed before its command ran, or its outputs could not be stored.
    Failed(Reason, Option<Ended>),
    /// The wanted context is unavailable; the workspace is unchanged.
    NoContent(Reason),
    /// The build exceeded its timeout.
    TimedOut(Option<Ended>),
    /// The worker shuts down or has a fault: the build is requeued.
    GiveBack(Reason),
    /// The build belongs to another attempt: nothing is written.
    NotOurs,
}

impl Ending {
    /// Whether the run succeeded; for a build that is a job, `job` decides.
    fn is_success(&self, job: Option<&JobEnd>) -> bool {
        match self {
            Self::Exited(ended) => ended.exit.exit_code == Some(0),
            Self::Tasks { .. } => job.is_some_and(|job| shortcoming(&job.result).is_none()),
            Self::Failed(..) | Self::NoContent(_) | Self::TimedOut(_) | Self::GiveBack(_) | Self::NotOurs => {
                false
            }
        }
    }

    /// The measurements of the command, if it ran.
    pub(crate) fn ended(&self) -> Option<&Ended> {
        match self {
            Self::Exited(ended) => Some(ended),
            Self::Failed(_, ended) | Self::TimedOut(ended) => ended.as_ref(),
            Self::Tasks { .. } | Self::NoContent(_) | Self::GiveBack(_) | Self::NotOurs => None,
        }
    }
}

/// State shared by the steps of a run.
pub(crate) struct Run<'a> {
    pub(crate) shared: &'a Shared,
    /// Number of the workspace.
    pub(crate) number: u16,
    pub(crate) shim: &'a mut Shim,
    pub(crate) shim_lives: bool,
    pub(crate) stop: &'a Stop,
    pub(crate) keeper: &'a mut LeaseKeeper,
    pub(crate) console: &'a mut Console,
    pub(crate) folder: &'a RunFolder,
    pub(crate) record: &'a BuildRecord,
    pub(crate) timeout_at: Instant,
    /// Whether files may be kept for the next build.
    pub(crate) warm: bool,
    /// The state of the workspace before the run.
    pub(crate) origin: WorkspaceOrigin,
    /// Guards processes that the last command left.
    pub(crate) guard: Option<Guard>,
    /// Duration of filling the workspace, if it was attempted.
    pub(crate) preparation_seconds: Option<f64>,
    /// The result of its job, if it is one.
    pub(crate) job: Option<Box<JobEnd>>,
}

/// The state of the workspace after a run.
pub(crate) struct After {
    /// Whether the shim can be used again.
    pub(crate) shim_lives: bool,
    pub(crate) left: Option<WarmWorkspace>,
}

/// Runs a claimed build, in the warm workspace `left` by another build if there is one.
pub(crate) async fn run(
    shared: &Arc<Shared>,
    number: u16,
    shim: &mut Shim,
    left: Option<WarmWorkspace>,
    claimed: Claimed,
    stop: Stop,
) -> After {
    let span = debug_span!("invocation", build = %claimed.key, attempt = claimed.record.attempt.0);
    telemetry::set_parent(&span, claimed.record.build.traceparent.as_deref(), None);
    run_inside(shared, number, shim, left, claimed, stop).instrument(span).await
}

async fn run_inside(
    shared: &Arc<Shared>,
    number: u16,
    shim: &mut Shim,
    left: Option<WarmWorkspace>,
    claimed: Claimed,
    stop: Stop,
) -> After {
    let Claimed { key, record, started_at, lease, deadline, lost } = claimed;
    let settings = &shared.context.settings;
    if let Some(cause) = lost {
        stop.now(cause);
    }
    let bus = &shared.context.bus;
    let mut keeper = LeaseKeeper::start(bus.clone(), lease, started_at, deadline, stop.clone());
    let finish = Finish { shared, number, record: &record, started_at };
    let (warm, origin) = origin(settings.warm_workspaces, &record, left.is_some());
    let before = left.as_ref().map(|left| left.keys.clone());
    let folder = match left.map_or_else(|| shared.folder.run_folder(number), |left| Ok(left.folder)) {
        Ok(folder) => folder,
        Err(error) => {
            let reason = prepare::broken("creating the workspace", &error);
            finish.write(keeper, Ending::Failed(reason, None), RunResults::default()).await;
            return After { shim_lives: true, left: None };
        }
    };
    let writer = GuardedWriter::new(bus.clone(), key, record.attempt, started_at);
    let limits = Limits { bus: settings.console_bytes_max, total: settings.log_bytes_max };
    let mut console = Console::new(writer, limits, folder.log.clone());
    let timeout_at = Instant::now() + Duration::from_secs(record.build.timeout_seconds);
    shared.usage.begin(number, &record);
    let mut run = Run {
        shared,
        number,
        shim,
        shim_lives: true,
        stop: &stop,
        keeper: &mut keeper,
        console: &mut console,
        folder: &folder,
        record: &record,
        timeout_at,
        warm,
        origin,
        guard: None,
        preparation_seconds: None,
        job: None,
    };
    let ending = run.steps().await;
    let keys = run.keys(&ending, before);
    let untouched = run.is_untouched(&ending);
    let (mut shim_lives, guard, job) = (run.shim_lives, run.guard.take(), run.job.take());
    let preparation_seconds = run.preparation_seconds;
    if !shim_lives && let Err(error) = shim.end().await {
        warn!(error = telemetry::error_chain(&error), "cannot confirm the end of a shim");
    }
    crash_point(Step::CommandEnded);
    let (ending, outputs) =
        keep_outputs(shared, &record, &folder, &mut console, &stop, (ending, job.as_deref())).await;
    let disk_is_full = folder.disk_is_full();
    let ending = if disk_is_full { blame_disk(ending) } else { ending };
    let log = console.finish(&shared.store).await.unwrap_or_else(|error| {
        warn!(error = telemetry::error_chain(&error), "cannot store the rest of a log");
        LogSummary::default()
    });
    crash_point(Step::OutputsKept);
    let failed = !ending.is_success(job.as_deref());
    let set_aside = settings.keep_failed_workspaces && failed && !untouched;
    let keys = keys.filter(|_| !disk_is_full && !set_aside);
    shim_lives = shim_lives && (keys.is_some() || forget(shim).await);
    let usage = shared.usage.end(number, ending.ended());
    let kept = RunResults { preparation_seconds, outputs, log, usage, left: keys.clone(), job };
    let ours = finish.write(keeper, ending, kept).await;
    let Some(keys) = keys.filter(|_| ours) else {
        shim_lives = shim_lives && forget(shim).await;
        folder.clear(set_aside);
        return After { shim_lives, left: None };
    };
    folder.keep();
    if let Some(guard) = guard {
        shim_lives = guard.release().await;
    }
    After { shim_lives, left: Some(WarmWorkspace { group: record.build.group, keys, folder }) }
}

/// Whether files may be kept for the next build, and the state of the workspace before this one.
fn origin(wanted: bool, record: &BuildRecord, is_left: bool) -> (bool, WorkspaceOrigin) {
    match record.invocation().and_then(|run| run.workspace_kind) {
        Some(WorkspaceKind::Exact | WorkspaceKind::Prefix) if is_left => (wanted, WorkspaceOrigin::Reused),
        Some(WorkspaceKind::Exact | WorkspaceKind::Prefix | WorkspaceKind::New) if wanted => {
            (true, WorkspaceOrigin::New)
        }
        Some(WorkspaceKind::Exact | WorkspaceKind::Prefix | WorkspaceKind::New) | None => {
            (false, WorkspaceOrigin::Fresh)
        }
    }
}

/// Ends all remaining processes; returns whether the shim lives.
async fn forget(shim: &mut Shim) -> bool {
    match shim.forget(Duration::ZERO).await {
        Ok(()) => true,
        Err(error) => {
            warn!(error = telemetry::error_chain(&error), "a shim failed to end its remaining processes");
            if let Err(error) = shim.end().await {
                debug!(error = telemetry::error_chain(&error), "cannot confirm the end of a shim");
            }
            false
        }
    }
}

/// Attributes a failure to the full disk.
fn blame_disk(ending: Ending) -> Ending {
    if matches!(&ending, Ending::Failed(reason, _) if reason.code == ReasonCode::DiskFull) {
        return ending;
    }
    let full = |what: &str| Reason {
        code: ReasonCode::DiskFull,
        message: format!("the worker's disk is full; {what}"),
    };
    match ending {
        Ending::Exited(ended) if ended.exit.exit_code != Some(0) => {
            let reason = full(&format!("the command failed: {}", exit_text(&ended.exit)));
            Ending::Failed(reason, Some(ended))
        }
        Ending::Failed(reason, ended) => Ending::Failed(full(&reason.message), ended),
        Ending::NoContent(reason) => Ending::Failed(full(&reason.message), None),
        Ending::Exited(_)
        | Ending::Tasks { .. }
        | Ending::TimedOut(_)
        | Ending::GiveBack(_)
        | Ending::NotOurs => ending,
    }
}

/// Stores the outputs of a command that ended, even if it failed: test reports are outputs.
async fn keep_outputs(
    shared: &Shared,
    record: &BuildRecord,
    folder: &RunFolder,
    console: &mut Console,
    stop: &Stop,
    (ending, job): (Ending, Option<&JobEnd>),
) -> (Ending, Outputs) {
    let root = match &ending {
        Ending::Exited(_) => &folder.build,
        Ending::Tasks { outputs } => outputs,
        Ending::Failed(..)
        | Ending::NoContent(_)
        | Ending::TimedOut(_)
        | Ending::GiveBack(_)
        | Ending::NotOurs => return (ending, Outputs::default()),
    };
    let most = shared.context.settings.output_bytes_max;
    let (deadline, mut waits) = (Instant::now() + ROOM_PATIENCE, false);
    loop {
        let reason = match outputs::keep(&shared.store, root, &record.build.outputs, most).await {
            Ok(outputs) => {
                warn_of(console, &outputs).await;
                return (with_required(record, &outputs, ending, job), outputs);
            }
            Err(reason) => reason,
        };
        let no_room = reason.code == ReasonCode::DiskFull;
        if no_room && stop.cause().is_none() && Instant::now() < deadline {
            if !std::mem::replace(&mut waits, true) {
                say(console, &format!("waiting for disk space: {}", reason.message)).await;
            }
            tokio::select! {
                () = stop.wanted() => {}
                () = tokio::time::sleep(ROOM_RETRY) => {}
            }
            continue;
        }
        say(console, &reason.message).await;
        // The build itself completed: it is requeued until there is room, here or elsewhere.
        let ending =
            if no_room { Ending::GiveBack(reason) } else { Ending::Failed(reason, ending.ended().cloned()) };
        return (ending, Outputs::default());
    }
}

/// A success without an output that the request requires is a failure.
fn with_required(record: &BuildRecord, outputs: &Outputs, ending: Ending, job: Option<&JobEnd>) -> Ending {
    let Some(glob) = outputs.missing.first() else { return ending };
    if !record.build.require_outputs || !ending.is_success(job) {
        return ending;
    }
    let message = match outputs.missing.len() {
        1 => format!("no file matches the output {glob}"),
        count => format!("no file matches the output {glob} and {} more", count - 1),
    };
    let reason = Reason { code: ReasonCode::OutputMissing, message };
    Ending::Failed(reason, ending.ended().cloned())
}

/// Prints warnings about outputs that are missing or not stored.
async fn warn_of(console: &mut Console, outputs: &Outputs) {
    let missing = outputs.missing.iter().map(|glob| format!("warning: no file matches the output {glob}"));
    let not_kept =
        outputs.not_kept.iter().map(|it| format!("warning: output {} is not kept: {}", it.path, it.reason));
    for line in missing.chain(not_kept).take(WARNINGS_MAX) {
        if !say(console, &line).await {
            return;
        }
    }
}

/// Writes a line to the console; returns whether that was possible. The command has ended: only the line is lost.
async fn say(console: &mut Console, line: &str) -> bool {
    let said = console.say(line).await;
    if let Err(fault) = &said {
        debug!(error = telemetry::error_chain(fault), text = line, "cannot write to the console");
    }
    said.is_ok()
}

impl Run<'_> {
    /// Prepares the workspace and runs the command.
    async fn steps(&mut self) -> Ending {
        let build = &self.record.build;
        if let Err(ending) = self.clear_home().await {
            return ending;
        }
        if !build.context.is_empty() {
            match self.prepare().instrument(debug_span!("prepare")).await {
                Ok(None) => {}
                Ok(Some(ending)) => return ending,
                Err(fault) => return self.fault(&fault),
            }
        }
        crash_point(Step::WorkspacePrepared);
        if let Some(job) = &build.job {
            return match self.run_job(job).instrument(debug_span!("job")).await {
                Ok(ending) => ending,
                Err(fault) => self.fault(&fault),
            };
        }
        let span = debug_span!("command");
        // Inside the span: the command continues its trace.
        let env = span.in_scope(|| environment::variables(self.shared, self.record, self.folder));
        match command::run(self, build.command.clone(), env).instrument(span).await {
            Err(fault) => self.fault(&fault),
            Ok(CommandEnd::Exited(ended)) => Ending::Exited(ended),
            Ok(end) => self.ending(end),
        }
    }

    pub(crate) fn ending(&mut self, end: CommandEnd) -> Ending {
        match end {
            CommandEnd::Exited(ended) => Ending::Exited(ended),
            CommandEnd::TimedOut(ended) => Ending::TimedOut(Some(ended)),
            CommandEnd::NotStarted(message) => {
                Ending::Failed(Reason { code: ReasonCode::CommandNotStarted, message }, None)
            }
            CommandEnd::Stopped(ended) => self.stopped(ended),
            CommandEnd::ShimGone(error) => {
                self.shim_lives = false;
                let message = format!("the shim of the workspace died: {}", telemetry::error_chain(&error));
                Ending::GiveBack(Reason { code: ReasonCode::WorkerFault, message })
            }
        }
    }

    /// The ending for the cause that the run was stopped for; `ended` holds the measurements of its command.
    pub(crate) fn stopped(&self, ended: Option<Ended>) -> Ending {
        match self.stop.cause() {
            Some(Cause::Drained) => {
                let message = format!("worker {} is draining", self.shared.id);
                Ending::GiveBack(Reason { code: ReasonCode::WorkerDrained, message })
            }
            Some(Cause::FilledDisk { resource, used, left, reserve }) => {
                let message = format!(
                    "the build filled the worker's disk and was stopped: its workspace used {used} {resource}, {left} \
                     {resource} were left, and {reserve} must stay free (disk_left_percent)"
                );
                Ending::Failed(Reason { code: ReasonCode::DiskFull, message }, ended)
            }
            Some(Cause::EndedElsewhere | Cause::LeaseLost) | None => Ending::NotOurs,
        }
    }

    /// Keys by which the next build finds the workspace, if it may be kept: an untouched workspace is still that
    /// of the build `before`.
    fn keys(&self, ending: &Ending, before: Option<WorkspaceKeys>) -> Option<WorkspaceKeys> {
        if !self.warm || self.stop.cause().is_some() {
            return None;
        }
        match ending {
            Ending::Exited(_) | Ending::Tasks { .. } => Some(live_keys(&self.record.build).workspace),
            Ending::NoContent(_)
            | Ending::Failed(..)
            | Ending::TimedOut(_)
            | Ending::GiveBack(_)
            | Ending::NotOurs => before.filter(|_| self.is_untouched(ending)),
        }
    }

    fn is_untouched(&self, ending: &Ending) -> bool {
        self.origin == WorkspaceOrigin::Reused && matches!(ending, Ending::NoContent(_))
    }

    fn fault(&self, fault: &ChunkFault) -> Ending {
        if matches!(self.stop.cause(), Some(Cause::FilledDisk { .. })) {
            return self.stopped(None);
        }
        debug!(build = %self.record.build.id, error = telemetry::error_chain(fault), "console lost, the run ends");
        Ending::NotOurs
    }
}
