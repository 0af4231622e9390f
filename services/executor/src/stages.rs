//! The places where commands run, one at a time in each.

use std::path::{Path, PathBuf};

use async_channel::{Receiver, Sender};
use futures::future::LocalBoxFuture;
use input_root::Owner;
use sandbox::{Bubblewrap, Cgroups, Ended, Parent, Sandbox, Slot, SlotConfig, User};
use service::ServiceError;
use settings::Settings;
use tokio::sync::oneshot;
use tracing::warn;

use crate::folder::ExecutorFolder;

/// An action that waits for a place, and all that is to be done with it there.
pub(crate) type Job = Box<dyn for<'a> FnOnce(&'a mut Stage) -> LocalBoxFuture<'a, ()> + Send>;

/// All places, each with a thread of its own, which ends with the last of these: what an action does to files blocks
/// nobody else. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Stages {
    jobs: Sender<Job>,
}

/// One place.
#[derive(Debug)]
pub(crate) struct Stage {
    config: SlotConfig,
    slot: Option<Slot>,
    folder: PathBuf,
}

impl Stages {
    /// Starts them; fails where the machine cannot confine actions as the settings say.
    pub(crate) async fn start(
        settings: &Settings,
        folder: &ExecutorFolder,
        owner: Option<Owner>,
    ) -> Result<Self, ServiceError> {
        let failed = |error| ServiceError::failed("preparing the sandbox of actions", error);
        let program = std::env::current_exe()
            .map_err(|error| ServiceError::failed("finding our own program", error))?;
        let sandbox = if settings.sandbox == "none" { Sandbox::None } else { Sandbox::Bubblewrap };
        let cgroups = Cgroups::detect(&Parent::default());
        let (jobs, waiting) = async_channel::unbounded();
        let mut starting = Vec::new();
        for number in 0..settings.executor_slot_count() {
            let folder = folder.slot(number);
            std::fs::create_dir_all(&folder)
                .map_err(|error| ServiceError::failed("making the folder of a slot", error))?;
            let defaults = Bubblewrap::default();
            let read_only = defaults.read_only.iter().chain(&settings.sandbox_read_only).cloned().collect();
            let config = SlotConfig {
                name: format!("forebay-{}-{number}", std::process::id()),
                program: program.clone(),
                work: folder.join("work"),
                sandbox,
                bubblewrap: Bubblewrap { read_only, ..defaults },
                user: owner.map(|Owner { uid, gid }| User { uid, gid }),
                processes_max: None,
                cgroups: cgroups.clone(),
            };
            let stage = Stage { config, slot: None, folder };
            starting.push(stage.start_thread(number, waiting.clone())?);
        }
        for started in starting {
            match started.await {
                Ok(outcome) => outcome.map_err(failed)?,
                Err(_) => return Err(ServiceError::failed("starting a slot", "its thread ended")),
            }
        }
        Ok(Self { jobs })
    }

    /// Does a job in the next place that is free.
    pub(crate) fn give(&self, job: Job) {
        // Fails when no thread is left, which none does before this is dropped.
        if self.jobs.try_send(job).is_err() {
            warn!("an action found no slot: all have ended");
        }
    }
}

/// Whether a place is usable.
type Started = oneshot::Receiver<Result<(), sandbox::SandboxError>>;

impl Stage {
    /// Starts its thread, which does one job after the other.
    fn start_thread(mut self, number: u16, jobs: Receiver<Job>) -> Result<Started, ServiceError> {
        let failed = |error| ServiceError::failed("starting the thread of a slot", error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (started, outcome) = oneshot::channel();
        let serve = move || {
            cas::dedicate_thread();
            runtime.block_on(async {
                match self.slot().await {
                    Ok(_) => drop(started.send(Ok(()))),
                    Err(error) => return drop(started.send(Err(error))),
                }
                while let Ok(job) = jobs.recv().await {
                    job(&mut self).await;
                }
            });
        };
        std::thread::Builder::new().name(format!("slot-{number}")).spawn(serve).map_err(failed)?;
        Ok(outcome)
    }

    /// The folder that input roots are made in. Commands see all that is in it.
    pub(crate) fn work(&self) -> &Path {
        &self.config.work
    }

    /// Where the command wrote.
    pub(crate) fn console(&self, ended: &Ended) -> input_root::Console {
        let (stdout, stderr) = self.outputs();
        input_root::Console {
            stdout: Some(stdout).filter(|_| ended.stdout_bytes > 0),
            stderr: Some(stderr).filter(|_| ended.stderr_bytes > 0),
        }
    }

    /// Where the command's stdout and stderr go.
    pub(crate) fn outputs(&self) -> (PathBuf, PathBuf) {
        (self.folder.join("stdout"), self.folder.join("stderr"))
    }

    /// The slot, started anew if it broke.
    pub(crate) async fn slot(&mut self) -> Result<&mut Slot, sandbox::SandboxError> {
        let slot = match self.slot.take() {
            Some(slot) => slot,
            None => Slot::start(self.config.clone()).await?,
        };
        Ok(self.slot.insert(slot))
    }

    /// Throws the slot away: something is wrong with it.
    pub(crate) fn break_slot(&mut self) {
        warn!(slot = self.config.name, "a slot is started anew");
        self.slot = None;
    }
}
