//! Runs a claimed build, from its claim to its end.

use std::{convert::Infallible, path::PathBuf, sync::Arc, time::Duration};

use bus::{Bus, GuardedWriter};
use cas::PutProgress;
use images::{Image, PullProgress};
use jobs::{JobEnd, StoreWait};
use model::{BuildRecord, ImageReference, LogSummary, OutputNotKept, Reason, ReasonCode};
use sensors::Together;
use service::{Step, crash_point};
use telemetry::escaped;
use tokio::time::Instant;
use tracing::{Instrument as _, debug, debug_span};

use crate::{
    build_run::Run,
    claim::Claimed,
    command::{self, Place},
    console::{Console, Hurry, Limits},
    disk_limit, disk_watch,
    ending::Ending,
    environment, event_stream, faults,
    finish::{Finish, RunResults},
    image::{BuildImages, NoImage},
    lease_keeper::LeaseKeeper,
    limits,
    outputs::{self, OutputSource, OutputStore, Outputs},
    prepare, services,
    shared::Shared,
    stop::{Cause, Stop},
    warm::{self, WarmWorkspace},
    workspace::{After, Workspace},
    workspace_shim::WorkspaceShim,
};

/// How long a run that was stopped continues to store its outputs: a worker that drains exits at least 5 s after it.
const STOPPED_PATIENCE: Duration = Duration::from_secs(3);
/// Time between two looks at the progress of storing outputs.
const PROGRESS_TICK: Duration = Duration::from_secs(1);
/// Time between two lines about the fetch of an image.
const FETCH_TICK: Duration = Duration::from_secs(5);
/// Maximum number of console lines about outputs; the result lists more.
const WARNINGS_MAX: usize = 20;

/// Runs a claimed build, in the warm workspace `left` by another build if there is one.
pub(crate) async fn run(
    shared: &Arc<Shared>,
    number: u16,
    shim: WorkspaceShim,
    left: Option<WarmWorkspace>,
    claimed: Claimed,
    stop: Stop,
) -> After {
    let span = debug_span!("invocation", build = %claimed.key, attempt = claimed.record.attempt.0);
    // Boxed: its state is large.
    Box::pin(run_inside(shared, number, shim, left, claimed, stop)).instrument(span).await
}

async fn run_inside(
    shared: &Arc<Shared>,
    number: u16,
    shim: WorkspaceShim,
    left: Option<WarmWorkspace>,
    claimed: Claimed,
    stop: Stop,
) -> After {
    let Claimed { key: _, record, started_at, lease, deadline, lost } = claimed;
    let (settings, bus) = (&shared.settings, &shared.context.bus);
    if let Some(cause) = lost {
        stop.now(cause);
    }
    let mut lease = LeaseKeeper::start(bus.clone(), lease, started_at, deadline, stop.clone());
    let finish = Finish { shared, number, record: &record, started_at };
    let (warm, origin) = warm::origin(shared.may_be_warm(&record.build), &record, left.is_some());
    let before = left.as_ref().map(|left| left.keys.clone());
    let folder = match left.map_or_else(|| shared.folder.run_folder(number), |left| Ok(left.folder)) {
        Ok(folder) => folder,
        Err(error) => {
            let ending = Ending::GiveBack(prepare::unusable(&error));
            faults::note(shared, &record, &ending);
            finish.write(&mut lease, ending, RunResults::default()).await;
            return After { shim: Some(shim), left: None };
        }
    };
    let writer = GuardedWriter::new(bus.clone(), &record, started_at);
    let timeout_at = Instant::now() + Duration::from_secs(record.build.timeout_seconds);
    let hurry = Hurry { stop: stop.clone(), timeout_at };
    let kept = Limits { bus: settings.console_bytes_max, total: settings.log_bytes_max };
    let mut console = Console::new(writer, kept, shared.store_of(&record.build.group), hurry);
    shared.usage.begin(number, &record);
    let workspace = Workspace { number, shim, shim_lives: true, folder, lease, warm, origin, guard: None };
    let mut run = Run {
        shared,
        workspace,
        stop: &stop,
        console: &mut console,
        record: &record,
        timeout_at,
        limits: limits::of(&record, settings),
        image: None,
        services: None,
        secrets: None,
        preparation_seconds: None,
        job: None,
    };
    shared.workspaces.set_disk_limit(number, run.limits.disk_bytes);
    let turn = run.turn().await;
    let ending = run.run_with_services().await;
    let (keys, untouched) = (run.keys(&ending, before), run.is_untouched(&ending));
    run.workspace.end_dead_shim().await;
    if matches!(ending, Ending::Exited(_)) && run.called_bazel() {
        event_stream::complete(shared, &record, &stop, timeout_at).await;
    }
    let tool = run.tool_facts(&ending).await;
    crash_point(Step::CommandEnded);
    let (ending, outputs) = run.keep_all_outputs(ending).await;
    let Run { mut workspace, job, preparation_seconds, .. } = run;
    let disk_is_full = workspace.folder.disk_is_full();
    let filled_disk = stop.cause().is_some_and(Cause::is_of_own_files);
    let blames_disk = (disk_is_full || ending.lacked_room()) && !filled_disk;
    let ending = if blames_disk { blame_disk(ending, shared, number).await } else { ending };
    let set_aside = settings.keep_failed_workspaces && !ending.is_success(job.as_deref()) && !untouched;
    let keys = keys.filter(|_| !disk_is_full && !set_aside);
    if blames_disk && keys.is_none() && !set_aside {
        shared.empty_workspace(number);
    }
    // The record of a build that is requeued, or runs elsewhere, has no log.
    let log = if matches!(ending, Ending::GiveBack(_) | Ending::NotFetched(_) | Ending::NotOurs) {
        LogSummary::default()
    } else {
        console.finish(storing_ends(&stop)).await
    };
    crash_point(Step::OutputsKept);
    if keys.is_none() {
        workspace.end_processes().await;
    }
    drop(turn);
    faults::note(shared, &record, &ending);
    let used = shared.usage.end(number, ending.ended().map(|ended| &ended.exit));
    let kept = RunResults { preparation_seconds, outputs, log, used, left: keys.clone(), tool, job };
    let ours = finish.write(&mut workspace.lease, ending, kept).await;
    match keys.filter(|_| ours) {
        Some(keys) => workspace.leave_warm(record.build.group, keys).await,
        None => workspace.leave_empty(set_aside).await,
    }
}

/// The build is requeued if the disk is full, and its own files are not the reason.
async fn blame_disk(ending: Ending, shared: &Shared, number: u16) -> Ending {
    ending.blame_disk(disk_watch::is_own_fault(shared, number).await)
}

impl Run<'_> {
    /// Waits while an action must be alone on this machine. A build that sends actions does not wait, and does not keep
    /// them waiting: it may be waiting for that very action. `None` also if the run is stopped.
    async fn turn(&self) -> Option<Together> {
        if self.record.build.sends_actions || self.record.build.job.is_some() {
            return None;
        }
        tokio::select! {
            turn = self.shared.machine.together() => Some(turn),
            () = self.stop.wanted() => None,
            () = tokio::time::sleep_until(self.timeout_at) => None,
        }
    }

    /// Prepares and runs the build, until its services have ended, too. What it wrote into its image is gone then.
    async fn run_with_services(&mut self) -> Ending {
        let ending = self.prepare_and_run().await;
        let ending = self.end_services(ending).await;
        self.leave_own_sandbox().await;
        ending
    }

    /// Prepares the workspace and runs the command or the job.
    async fn prepare_and_run(&mut self) -> Ending {
        let build = &self.record.build;
        if let Err(ending) = self.take_secrets().await {
            return ending;
        }
        if let Err(ending) = self.fetch_image().await {
            return ending;
        }
        self.workspace.hold(true).await;
        if let Err(ending) = self.clear_home().await {
            return ending;
        }
        if !build.context.is_empty() {
            match self.prepare().await {
                Ok(None) => {}
                Ok(Some(ending)) => return ending,
                Err(fault) => return self.fault(&fault),
            }
        }
        match self.prepare_services().await {
            Ok(None) => {}
            Ok(Some(ending)) => return ending,
            Err(fault) => return self.fault(&fault),
        }
        crash_point(Step::WorkspacePrepared);
        if self.sandbox().is_some()
            && let Err(error) = self.workspace.shim.give(&self.workspace.folder, self.image.as_deref()).await
        {
            return Ending::GiveBack(prepare::unusable(&error));
        }
        // The worker reads the files of a job, whose tasks run elsewhere.
        self.workspace.hold(build.job.is_some()).await;
        if let Err(ending) = self.start_services().await {
            return ending;
        }
        let ended = if let Some(job) = &build.job {
            self.run_job(job).await
        } else {
            if let Err(ending) = self.stage_secrets() {
                return ending;
            }
            let env = environment::variables(self);
            command::run(self, Place::Build, build.command.clone(), env).await
        };
        let ending = ended.unwrap_or_else(|fault| self.fault(&fault));
        self.within_disk_limit(ending).await
    }

    /// Fetches the image that the build asks for.
    async fn fetch_image(&mut self) -> Result<(), Ending> {
        if self.shared.images.is_none() {
            return Ok(());
        }
        let Some(asked) = BuildImages::asked(&self.record.build) else { return Ok(()) };
        let image = self.fetch(&asked).await?;
        let line = format!("runs in the image {}", asked.pinned(image.digest.clone()));
        self.image = Some(image);
        say(self.console, &line).await;
        Ok(())
    }

    /// Fetches an image for the build or one of its services.
    pub(crate) async fn fetch(&mut self, asked: &ImageReference) -> Result<Arc<Image>, Ending> {
        let Some(images) = &self.shared.images else {
            let message = "this worker runs nothing in images (images)".to_owned();
            return Err(Ending::GiveBack(Reason { code: ReasonCode::WorkerFault, message }));
        };
        say(self.console, &format!("fetching the image {asked}")).await;
        let progress = PullProgress::default();
        let found = tokio::select! {
            found = images.get(asked, &progress) => found,
            never = report_fetched(self.console, &progress) => match never {},
            () = self.stop.wanted() => return Err(self.stopped(None)),
            () = tokio::time::sleep_until(self.timeout_at) => return Err(Ending::TimedOut(None)),
        };
        match found {
            Ok(image) => Ok(image),
            Err(NoImage::Never(reason)) => Err(Ending::Failed(reason, None)),
            Err(NoImage::NotHere(reason)) => Err(Ending::of_workspace(reason, self.record)),
            Err(NoImage::Fault(reason)) => Err(Ending::GiveBack(reason)),
        }
    }

    /// Measures the files of a build once more at its end, which may have been too soon for the measurements before.
    async fn within_disk_limit(&self, ending: Ending) -> Ending {
        let (Ending::Exited(ended), Some(allowed)) = (&ending, self.limits.disk_bytes) else { return ending };
        let used = disk_limit::measure(self.workspace.folder.root().to_owned()).await;
        if used <= allowed {
            return ending;
        }
        Ending::Failed(limits::too_much_disk(used, allowed), Some(ended.clone()))
    }

    /// What is to be kept of a run: the outputs of its command or job, and what its services wrote, also if
    /// they are why it failed.
    fn output_sources(&self, ending: &Ending) -> Vec<OutputSource> {
        let folder = &self.workspace.folder;
        let of_command = match ending {
            Ending::Exited(_) => Some(&folder.build),
            Ending::Failed(reason, Some(_)) if reason.code == ReasonCode::ServiceFailed => {
                Some(&folder.build)
            }
            Ending::Tasks { outputs } => Some(outputs),
            Ending::Failed(..) | Ending::TimedOut(_) => None,
            Ending::NoContent(_) | Ending::NotFetched(_) | Ending::GiveBack(_) | Ending::NotOurs => {
                return Vec::new();
            }
        };
        let source = |root: &PathBuf, patterns| OutputSource { root: root.clone(), patterns };
        let logs = folder.service_logs();
        let of_services = logs.exists().then(|| source(&logs, vec![services::OUTPUTS_GLOB.to_owned()]));
        let of_command = of_command.map(|root| source(root, self.record.build.outputs.clone()));
        of_command.into_iter().chain(of_services).collect()
    }

    /// Stores the outputs, and removes what is left of services. What is said about them and the end has no secrets.
    async fn keep_all_outputs(&mut self, ending: Ending) -> (Ending, Outputs) {
        let (ending, outputs) = self.keep_outputs(ending).await;
        self.workspace.folder.remove_services();
        match &self.secrets {
            Some(secrets) => (secrets.mask_ending(ending), secrets.mask_outputs(outputs)),
            None => (ending, outputs),
        }
    }

    /// Stores the outputs of a command that ended, even if it failed: test reports are outputs.
    async fn keep_outputs(&mut self, ending: Ending) -> (Ending, Outputs) {
        let sources = self.output_sources(&ending);
        if sources.is_empty() {
            return (ending, Outputs::default());
        }
        let shared = self.shared;
        let most = shared.settings.output_bytes_max;
        let store = shared.store_of(&self.record.build.group);
        let mut wait = StoreWait::default();
        // The most that an attempt has done so far.
        let (mut files, mut work) = (0, 0);
        loop {
            let progress = Arc::<PutProgress>::default();
            let to = OutputStore { cas: &store, progress: &progress, wait_left: wait.left() };
            let kept = tokio::select! {
                kept = outputs::keep_all(&to, &sources, most) => kept,
                never = report_stored(&self.workspace.lease, &progress, &shared.context.bus) => match never {},
                () = storing_ends(self.stop) => {
                    return (self.stopped(ending.ended().cloned()), Outputs::default());
                }
            };
            if progress.files() > files || progress.work_done() > work {
                wait = StoreWait::default();
            }
            (files, work) = (files.max(progress.files()), work.max(progress.work_done()));
            let reason = match kept {
                Ok(outputs) => {
                    warn_of(self.console, &outputs).await;
                    return (with_required(self.record, &outputs, ending, self.job.as_deref()), outputs);
                }
                Err(reason) => reason,
            };
            let may_succeed_later =
                matches!(reason.code, ReasonCode::DiskFull | ReasonCode::StoreUnreachable);
            if may_succeed_later && self.stop.cause().is_none() && !wait.is_over() {
                if let Some(line) = wait.begin(&reason) {
                    say(self.console, &line).await;
                }
                tokio::select! {
                    () = self.stop.wanted() => {}
                    () = wait.pause() => {}
                }
                continue;
            }
            if may_succeed_later && matches!(self.stop.cause(), Some(Cause::Drained | Cause::EndedElsewhere))
            {
                return (self.stopped(ending.ended().cloned()), Outputs::default());
            }
            say(self.console, &reason.message).await;
            // The build itself completed: it is requeued until the store accepts its outputs, here or elsewhere.
            let ending = if may_succeed_later {
                Ending::GiveBack(reason)
            } else {
                Ending::Failed(reason, ending.ended().cloned())
            };
            return (ending, Outputs::default());
        }
    }
}

/// Returns when a run must not continue to store its outputs: soon after a stop.
async fn storing_ends(stop: &Stop) {
    stop.wanted().await;
    match stop.cause() {
        Some(Cause::EndedElsewhere) => {}
        Some(Cause::LeaseLost | Cause::Drained) | None => tokio::time::sleep(STOPPED_PATIENCE).await,
        // The command has ended: it no longer fills the disk.
        Some(Cause::FilledDisk { .. } | Cause::OverDisk { .. }) => std::future::pending().await,
    }
}

/// Reports the progress of storing outputs with the lease: the timeout of the build does not include it.
async fn report_stored(lease: &LeaseKeeper, progress: &PutProgress, bus: &Bus) -> Infallible {
    let mut seen = None;
    loop {
        let now = progress.work_done();
        if seen.replace(now) != Some(now) {
            lease.report_stored(bus.now());
        }
        tokio::time::sleep(PROGRESS_TICK).await;
    }
}

/// Prints how much of an image was fetched, as long as that takes.
async fn report_fetched(console: &mut Console, progress: &PullProgress) -> Infallible {
    loop {
        tokio::time::sleep(FETCH_TICK).await;
        let (expected, fetched) = progress.read();
        let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
        if expected > 0 {
            let (fetched, expected) = (megabytes(fetched), megabytes(expected));
            say(console, &format!("fetching the image, {fetched} of {expected} MB")).await;
        }
    }
}

/// A success without an output that the request requires is a failure.
fn with_required(record: &BuildRecord, outputs: &Outputs, ending: Ending, job: Option<&JobEnd>) -> Ending {
    let Some(first) = outputs.missing.first() else { return ending };
    if !record.build.require_outputs || !ending.is_success(job) {
        return ending;
    }
    let named = outputs.missing.iter().find(|missing| missing.left_out.is_none()).unwrap_or(first);
    let mut message = match &named.left_out {
        Some(left_out) => not_kept_text(left_out),
        None => missing_text(&named.glob),
    };
    if outputs.missing.len() > 1 {
        message = format!("{message} and {} more", outputs.missing.len() - 1);
    }
    let reason = Reason { code: ReasonCode::OutputMissing, message };
    Ending::Failed(reason, ending.ended().cloned())
}

fn missing_text(glob: &str) -> String {
    format!("no file matches the output {}", escaped(glob))
}

fn not_kept_text(left_out: &OutputNotKept) -> String {
    format!("output {} is not kept: {}", escaped(&left_out.path), left_out.reason)
}

/// Prints warnings about outputs that are missing or not stored.
async fn warn_of(console: &mut Console, outputs: &Outputs) {
    let unexplained = outputs.missing.iter().filter(|missing| missing.left_out.is_none());
    let missing = unexplained.map(|missing| format!("warning: {}", missing_text(&missing.glob)));
    let not_kept = outputs.not_kept.iter().map(|it| format!("warning: {}", not_kept_text(it)));
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
        let text = &*console.masked(line);
        debug!(error = telemetry::error_chain(fault), text, "cannot write to the console");
    }
    said.is_ok()
}
