//! The places where commands run, one at a time in each.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use input_root::Owner;
use sandbox::{Bubblewrap, Cgroups, Parent, Sandbox, Slot, SlotConfig, User};
use service::ServiceError;
use settings::Settings;
use tokio::sync::Semaphore;
use tracing::warn;

use crate::folder::ExecutorFolder;

/// All places. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Stages {
    free: Arc<Mutex<Vec<Stage>>>,
    count: Arc<Semaphore>,
}

/// One place.
#[derive(Debug)]
pub(crate) struct Stage {
    config: SlotConfig,
    slot: Option<Slot>,
    folder: PathBuf,
}

/// A place in use: it is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    stages: Stages,
    stage: Option<Stage>,
    _permit: tokio::sync::OwnedSemaphorePermit,
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
        let mut stages = Vec::new();
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
            let slot = Slot::start(config.clone()).await.map_err(failed)?;
            stages.push(Stage { config, slot: Some(slot), folder });
        }
        let count = Arc::new(Semaphore::new(stages.len()));
        Ok(Self { free: Arc::new(Mutex::new(stages)), count })
    }

    /// A free place, as soon as there is one.
    pub(crate) async fn hold(&self) -> Held {
        let Ok(permit) = self.count.clone().acquire_owned().await else {
            // Never closed.
            std::future::pending().await
        };
        let stage = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Held { stages: self.clone(), stage, _permit: permit }
    }
}

impl Held {
    /// The place. There is one for each permit.
    pub(crate) fn stage(&mut self) -> Option<&mut Stage> {
        self.stage.as_mut()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(stage) = self.stage.take() {
            self.stages.free.lock().unwrap_or_else(PoisonError::into_inner).push(stage);
        }
    }
}

impl Stage {
    /// The folder that input roots are made in. Commands see all that is in it.
    pub(crate) fn work(&self) -> &Path {
        &self.config.work
    }

    /// Where the command wrote.
    pub(crate) fn console(&self) -> input_root::Console {
        let (stdout, stderr) = self.outputs();
        input_root::Console { stdout, stderr }
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
