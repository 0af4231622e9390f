//! Prepares the workspace of a run, step by step.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bus::ChunkFault;
use disk::Reserve;
use invariant::impossible;
use jobs::{Cancel, StoreWait};
use model::{Reason, ReasonCode, ToolEvent};
use policy::may_be_prepared_elsewhere;
use telemetry::metrics::{Histogram, Label, observe};
use tokio::time::Instant;
use tracing::debug;

use crate::{
    build_run::Run,
    command::{self, Place},
    ending::Ending,
    environment, home,
    prepare::{self, NO_CONTENT, NOT_HERE, PrepareOptions},
    prepare_step::{Fault, Fetch, FileWork, PrepareStep, Work},
    relay::Relay,
    sync::Progress,
    warm::WorkspaceOrigin,
};

/// How long a preparation runs before its progress is reported, and the time between two reports.
const LONG: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_secs(2);

impl Run<'_> {
    /// Fills the workspace; returns how the run ends if that fails. Files of a similar build may be the cause of a
    /// failure: then it tries once more with an empty workspace.
    pub(crate) async fn prepare(&mut self) -> Result<Option<Ending>, ChunkFault> {
        let begun = Instant::now();
        let mut ending = self.fill().await?;
        if self.workspace.origin == WorkspaceOrigin::Reused
            && let Some(reason) = ending.as_ref().and_then(|ending| self.in_the_way(ending))
        {
            debug!(build = %self.record.build.id, reason = reason.message, "preparing the workspace again from empty");
            self.console.say("preparing the workspace again from empty").await?;
            ending = match self.clear().await {
                Ok(()) => self.fill().await?,
                Err(ending) => Some(ending),
            };
        }
        let took = begun.elapsed();
        let wall_seconds = took.as_secs_f64();
        let priority = self.record.build.priority.as_str();
        observe(Histogram::BuildPreparationSeconds, &[(Label::Priority, priority)], took);
        self.preparation_seconds = Some(wall_seconds);
        if ending.is_none() {
            let event = ToolEvent::WorkspacePrepared { attempt: self.record.attempt, wall_seconds };
            self.console.tool(&event).await?;
        }
        Ok(ending)
    }

    /// Why the workspace could not be filled, if the files of a similar build may be the cause.
    fn in_the_way<'a>(&self, ending: &'a Ending) -> Option<&'a Reason> {
        match ending {
            Ending::Failed(reason, None) => Some(reason),
            Ending::GiveBack(reason) => (reason.code == ReasonCode::ContextUnavailable).then_some(reason),
            Ending::NoContent(reason) => self.workspace.folder.disk_is_full().then_some(reason),
            Ending::Failed(_, Some(_))
            | Ending::Exited(_)
            | Ending::Tasks { .. }
            | Ending::NotFetched(_)
            | Ending::TimedOut(_)
            | Ending::NotOurs => None,
        }
    }

    /// Reduces the home folder of a similar build to its caches; if that fails, clears the whole workspace.
    pub(crate) async fn clear_home(&mut self) -> Result<(), Ending> {
        if self.workspace.origin != WorkspaceOrigin::Reused {
            return Ok(());
        }
        let home = self.workspace.folder.home.clone();
        let cleared = tokio::task::spawn_blocking(move || home::clear(&home)).await;
        match cleared.map_err(io::Error::other).and_then(|cleared| cleared) {
            Ok(()) => Ok(()),
            Err(error) => {
                debug!(build = %self.record.build.id, %error, "clearing the workspace with its home");
                self.clear().await
            }
        }
    }

    /// Removes the files and processes of a similar build.
    async fn clear(&mut self) -> Result<(), Ending> {
        self.workspace.origin = WorkspaceOrigin::New;
        if let Err(error) = self.workspace.shim.forget(Duration::ZERO).await {
            self.workspace.shim_lives = false;
            return Err(Ending::shim_gone(&error));
        }
        self.workspace.folder.wipe().map_err(|error| Ending::GiveBack(prepare::unusable(&error)))
    }

    async fn fill(&mut self) -> Result<Option<Ending>, ChunkFault> {
        let shared = self.shared;
        let settings = &shared.settings;
        let store = shared.store_of(&self.record.build.group);
        let options = PrepareOptions {
            sources: &shared.sources,
            git_settings: settings.git_config_file.as_deref(),
            data: &shared.context.settings.store.data,
            unpacked_bytes_max: settings.unpacked_bytes_max,
            reserve: Reserve::new(settings.disk_left_percent),
            cas: &store,
        };
        let context = &self.record.build.context;
        let steps = tokio::select! {
            steps = prepare::steps(context, &self.workspace.folder, self.workspace.origin, &options) => steps,
            () = self.stop.wanted() => return Ok(Some(self.stopped(None))),
            () = tokio::time::sleep_until(self.timeout_at) => return Ok(Some(Ending::TimedOut(None))),
        };
        let mut steps = match steps {
            Ok(steps) => VecDeque::from(steps),
            Err(fault) => return self.failed(fault).await.map(Some),
        };
        while let Some(PrepareStep { what, work }) = steps.pop_front() {
            let ending = match work {
                Work::Command { argv, env, relay } => {
                    self.prepare_command(&what, argv, env, relay.as_ref()).await?
                }
                Work::Fetch { fetch, progress } => match self.prepare_fetch(&what, fetch, &progress).await? {
                    Ok(next) => {
                        steps.push_front(next);
                        None
                    }
                    Err(ending) => Some(ending),
                },
                Work::Files { work, progress } => self.prepare_files(&what, work, progress).await?,
            };
            if ending.is_some() {
                return Ok(ending);
            }
        }
        Ok(None)
    }

    async fn prepare_command(
        &mut self,
        what: &str,
        argv: Vec<String>,
        more: Vec<(String, String)>,
        relay: Option<&Relay>,
    ) -> Result<Option<Ending>, ChunkFault> {
        let own = self.workspace.folder.own();
        let mut env = match own.map(|own| environment::of_preparation(&self.record.build, own)) {
            Ok(env) => env,
            Err(error) => {
                return self.failed(Fault::Workspace(prepare::broken(what, &error))).await.map(Some);
            }
        };
        env.extend(more);
        let argv = match command::confined(self, argv) {
            Ok(argv) => argv,
            Err(error) => return Ok(Some(Ending::not_started(telemetry::error_chain(&error)))),
        };
        let ending = command::run(self, Place::Preparation, argv, env).await?;
        let Ending::Exited(ended) = ending else { return Ok(Some(ending)) };
        if ended.is_success() {
            return Ok(None);
        }
        if let Some(refusal) = relay.and_then(Relay::refusal) {
            return self.failed(prepare::unavailable(format!("{what} failed: {refusal}"))).await.map(Some);
        }
        let said = if ended.said.is_empty() { ended.text() } else { ended.said.clone() };
        let message = format!("{what} failed: {said}");
        let reason = Reason { code: ReasonCode::ContextUnavailable, message };
        let fault = match ended.exit.exit_code {
            Some(NO_CONTENT) => Fault::NoContent(reason),
            Some(NOT_HERE) => Fault::NotHere(reason),
            _ => Fault::Workspace(reason),
        };
        self.failed(fault).await.map(Some)
    }

    /// Returns the next step, or how the run ends. Waits for a store that does not answer. Nothing but the fetched
    /// files remains of a fetch that the end of the run interrupts.
    async fn prepare_fetch(
        &mut self,
        what: &str,
        fetch: Fetch,
        progress: &Progress,
    ) -> Result<Result<PrepareStep, Ending>, ChunkFault> {
        let mut wait = StoreWait::default();
        loop {
            let fault = match self.wait_for(what, fetch(), Some(progress)).await {
                Ok(Ok(next)) => return Ok(Ok(next)),
                Ok(Err(fault)) => fault,
                Err(ending) => return Ok(Err(ending)),
            };
            let Fault::StoreUnreachable(reason) = fault else { return self.failed(fault).await.map(Err) };
            if wait.is_over() {
                return self.failed(Fault::StoreUnreachable(reason)).await.map(Err);
            }
            if let Some(line) = wait.begin(&reason) {
                self.console.say(&line).await?;
            }
            if let Err(ending) = self.wait_for(what, Box::pin(wait.pause()), None).await {
                return Ok(Err(ending));
            }
        }
    }

    /// Work on files has stopped when this returns, whatever the reason: the workspace is then free
    /// for the next build.
    pub(crate) async fn prepare_files(
        &mut self,
        what: &str,
        work: FileWork,
        progress: Option<Arc<Progress>>,
    ) -> Result<Option<Ending>, ChunkFault> {
        let cancel = Cancel::default();
        let flag = cancel.flag();
        let mut task = tokio::task::spawn_blocking(move || work(&flag));
        let done = match self.wait_for(what, &mut task, progress.as_deref()).await {
            Ok(done) => done,
            Err(ending) => {
                drop(cancel);
                // The run ends for another reason: the result of the work does not matter.
                let _ = task.await;
                return Ok(Some(ending));
            }
        };
        match done.map_err(io::Error::other).and_then(|done| done) {
            Ok(()) => Ok(None),
            Err(error) => {
                if error.kind() == io::ErrorKind::StorageFull {
                    self.shared.empty_workspace(self.workspace.number);
                }
                self.failed(prepare::not_copied(what, &error)).await.map(Some)
            }
        }
    }

    /// Waits for `work` and reports its progress; fails with the ending if the run ends first.
    async fn wait_for<T>(
        &mut self,
        what: &str,
        mut work: impl Future<Output = T> + Unpin,
        progress: Option<&Progress>,
    ) -> Result<T, Ending> {
        let mut ticks = tokio::time::interval_at(Instant::now() + LONG, TICK);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                _ = ticks.tick(), if progress.is_some() => {
                    let reported = self.report_progress(what, progress).await;
                    if reported.is_err() {
                        return Err(Ending::NotOurs);
                    }
                }
                () = self.stop.wanted() => return Err(self.stopped(None)),
                () = tokio::time::sleep_until(self.timeout_at) => return Err(Ending::TimedOut(None)),
            }
        }
    }

    async fn report_progress(&mut self, what: &str, progress: Option<&Progress>) -> Result<(), ChunkFault> {
        let Some(progress) = progress else {
            impossible!("{what} reports progress, but measures none");
            return Ok(());
        };
        let event = ToolEvent::WorkspacePreparing {
            attempt: self.record.attempt,
            what: what.to_owned(),
            files: progress.files.load(Ordering::Relaxed),
            files_total: progress.files_total.load(Ordering::Relaxed),
            bytes: progress.bytes.load(Ordering::Relaxed),
        };
        self.console.tool(&event).await
    }

    async fn failed(&mut self, fault: Fault) -> Result<Ending, ChunkFault> {
        let (Fault::NoContent(reason)
        | Fault::NotHere(reason)
        | Fault::StoreUnreachable(reason)
        | Fault::StoreLost(reason)
        | Fault::Workspace(reason)) = &fault;
        self.console.say(&reason.message).await?;
        Ok(match fault {
            Fault::NotHere(reason) if may_be_prepared_elsewhere(self.record) => Ending::NotFetched(reason),
            Fault::NoContent(reason) | Fault::NotHere(reason) => Ending::NoContent(reason),
            Fault::StoreUnreachable(reason) => Ending::NotFetched(reason),
            Fault::StoreLost(reason) => Ending::GiveBack(reason),
            Fault::Workspace(reason) => Ending::of_workspace(reason, self.record),
        })
    }
}
