//! Preparing the workspace of a run, step by step.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bus::ChunkFault;
use model::{Reason, ReasonCode, ToolEvent};
use tokio::time::Instant;
use tracing::debug;

use crate::{
    command::{self, CommandEnd, exit_text},
    environment, home,
    prepare::{self, Fault, FileWork, Ground, NO_CONTENT, PrepareStep, Work},
    run::{Ending, Run},
};

/// Has work on files end when whoever wanted it does not wait any more.
#[derive(Default)]
pub(crate) struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// What the work is to look at.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Run<'_> {
    /// Fills the workspace; how the run ends where that fails. What a similar build left may be in the way: then once
    /// again, from nothing.
    pub(crate) async fn prepare(&mut self) -> Result<Option<Ending>, ChunkFault> {
        let begun = Instant::now();
        let mut ending = self.fill().await?;
        if self.ground == Ground::Reused
            && let Some(reason) = ending.as_ref().and_then(|ending| self.in_the_way(ending))
        {
            debug!(build = %self.record.build.id, reason = reason.message, "a workspace is prepared from nothing");
            self.console.say("the workspace is prepared again, from nothing").await?;
            ending = match self.clear().await {
                Ok(()) => self.fill().await?,
                Err(ending) => Some(ending),
            };
        }
        if ending.is_none() {
            let wall_seconds = begun.elapsed().as_secs_f64();
            let event = ToolEvent::WorkspacePrepared { attempt: self.record.attempt, wall_seconds };
            self.console.tool(&event).await?;
        }
        Ok(ending)
    }

    /// Why the workspace could not be filled, where what a similar build left may have to do with it.
    fn in_the_way<'a>(&self, ending: &'a Ending) -> Option<&'a Reason> {
        match ending {
            Ending::Failed(reason, None) => Some(reason),
            Ending::NoContent(reason) => self.folder.disk_is_full().then_some(reason),
            Ending::Failed(_, Some(_))
            | Ending::Exited(_)
            | Ending::Tasks { .. }
            | Ending::TimedOut(_)
            | Ending::GiveBack(_)
            | Ending::NotOurs => None,
        }
    }

    /// Leaves of the home folder of a similar build only its caches; of everything nothing where that fails.
    pub(crate) async fn clear_home(&mut self) -> Result<(), Ending> {
        if self.ground != Ground::Reused {
            return Ok(());
        }
        let home = self.folder.home.clone();
        let cleared = tokio::task::spawn_blocking(move || home::clear(&home)).await;
        match cleared.map_err(io::Error::other).and_then(|cleared| cleared) {
            Ok(()) => Ok(()),
            Err(error) => {
                debug!(build = %self.record.build.id, %error, "a home folder is made from nothing");
                self.clear().await
            }
        }
    }

    /// Removes what a similar build left, and its processes.
    async fn clear(&mut self) -> Result<(), Ending> {
        self.ground = Ground::New;
        if let Err(error) = self.shim.forget(std::time::Duration::ZERO).await {
            return Err(self.ending(CommandEnd::ShimGone(error)));
        }
        self.folder.wipe().map_err(|error| {
            let reason = prepare::broken("making the workspace", &error);
            Ending::Failed(reason, None)
        })
    }

    async fn fill(&mut self) -> Result<Option<Ending>, ChunkFault> {
        let settings = self.shared.context.settings.git_config_file.as_deref();
        let steps = tokio::select! {
            steps = prepare::steps(&self.record.build.context, self.folder, self.ground, settings) => steps,
            () = self.stop.wanted() => return Ok(Some(self.stopped())),
            () = tokio::time::sleep_until(self.timeout_at) => return Ok(Some(Ending::TimedOut(None))),
        };
        let steps = match steps {
            Ok(steps) => steps,
            Err(fault) => return self.failed(fault).await,
        };
        for PrepareStep { what, work } in steps {
            let ending = match work {
                Work::Command { argv, env } => self.prepare_command(&what, argv, env).await?,
                Work::Files(work) => self.prepare_files(&what, work).await?,
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
    ) -> Result<Option<Ending>, ChunkFault> {
        let mut env = match self.folder.own() {
            Ok(own) => environment::of_preparation(&self.record.build, own),
            Err(error) => return self.failed(Fault::Workspace(prepare::broken(what, &error))).await,
        };
        env.extend(more);
        match command::run(self, argv, env).await? {
            CommandEnd::Exited(ended) if ended.exit.exit_code == Some(0) => Ok(None),
            CommandEnd::Exited(ended) => {
                let message = format!("{what} failed: {}", exit_text(&ended.exit));
                let reason = Reason { code: ReasonCode::ContextUnavailable, message };
                let touched = ended.exit.exit_code != Some(NO_CONTENT);
                self.failed(if touched { Fault::Workspace(reason) } else { Fault::NoContent(reason) }).await
            }
            end @ (CommandEnd::NotStarted(_)
            | CommandEnd::TimedOut(_)
            | CommandEnd::Stopped
            | CommandEnd::ShimGone(_)) => Ok(Some(self.ending(end))),
        }
    }

    /// Work on files is over when this returns, whatever the reason: the workspace is for the next one then.
    async fn prepare_files(&mut self, what: &str, work: FileWork) -> Result<Option<Ending>, ChunkFault> {
        let cancel = Cancel::default();
        let flag = cancel.flag();
        let mut task = tokio::task::spawn_blocking(move || work(&flag));
        let ending = tokio::select! {
            done = &mut task => {
                let error = match done {
                    Ok(Ok(())) => return Ok(None),
                    Ok(Err(error)) => error,
                    Err(panicked) => std::io::Error::other(panicked),
                };
                return self.failed(Fault::Workspace(prepare::broken(what, &error))).await;
            }
            () = self.stop.wanted() => self.stopped(),
            () = tokio::time::sleep_until(self.timeout_at) => Ending::TimedOut(None),
        };
        drop(cancel);
        let _ = task.await;
        Ok(Some(ending))
    }

    async fn failed(&mut self, fault: Fault) -> Result<Option<Ending>, ChunkFault> {
        let (Fault::NoContent(reason) | Fault::Workspace(reason)) = &fault;
        self.console.say(&reason.message).await?;
        Ok(Some(match fault {
            Fault::NoContent(reason) => Ending::NoContent(reason),
            Fault::Workspace(reason) => Ending::Failed(reason, None),
        }))
    }
}
