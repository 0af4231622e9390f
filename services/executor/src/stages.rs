//! The places where commands run, one at a time in each.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use futures::future::LocalBoxFuture;
use input_root::Owner;
use sandbox::{Bubblewrap, Cgroups, Ended, Parent, Sandbox, Slot, SlotConfig, User};
use service::ServiceError;
use settings::Settings;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::warn;

use crate::folder::ExecutorFolder;

/// All places, each with a thread of its own: what an action does to files blocks nobody else. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Stages {
    queue: Arc<Queue>,
    _ended: Arc<DropGuard>,
}

/// An action that waits for a place, and all that is to be done with it there.
pub(crate) type Job = Box<dyn for<'a> FnOnce(&'a mut Stage) -> LocalBoxFuture<'a, ()> + Send>;

#[derive(Default)]
struct Queue {
    jobs: Mutex<VecDeque<Job>>,
    ready: Notify,
    ended: CancellationToken,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
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
        let queue = Arc::new(Queue::default());
        let stages = Self { _ended: Arc::new(queue.ended.clone().drop_guard()), queue };
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
            starting.push(stages.start_thread(number, stage)?);
        }
        for started in starting {
            match started.await {
                Ok(outcome) => outcome.map_err(failed)?,
                Err(_) => return Err(ServiceError::failed("starting a slot", "its thread ended")),
            }
        }
        Ok(stages)
    }

    /// Does a job in the next place that is free.
    pub(crate) fn give(&self, job: Job) {
        self.queue.jobs.lock().unwrap_or_else(PoisonError::into_inner).push_back(job);
        self.queue.ready.notify_one();
    }

    /// Starts the thread of a place; it says when the place is usable.
    fn start_thread(&self, number: u16, mut stage: Stage) -> Result<Started, ServiceError> {
        let failed = |error| ServiceError::failed("starting the thread of a slot", error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let queue = Arc::clone(&self.queue);
        let (started, outcome) = oneshot::channel();
        let serve = move || {
            cas::dedicate_thread();
            runtime.block_on(async {
                match stage.slot().await {
                    Ok(_) => drop(started.send(Ok(()))),
                    Err(error) => return drop(started.send(Err(error))),
                }
                while let Some(job) = queue.next().await {
                    job(&mut stage).await;
                }
            });
        };
        std::thread::Builder::new().name(format!("slot-{number}")).spawn(serve).map_err(failed)?;
        Ok(outcome)
    }
}

type Started = oneshot::Receiver<Result<(), sandbox::SandboxError>>;

impl Queue {
    /// The next job; `None` when there will be none.
    async fn next(&self) -> Option<Job> {
        loop {
            let ready = self.ready.notified();
            let (job, more) = {
                let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
                (jobs.pop_front(), !jobs.is_empty())
            };
            if let Some(job) = job {
                if more {
                    self.ready.notify_one();
                }
                return Some(job);
            }
            tokio::select! {
                () = self.ended.cancelled() => return None,
                () = ready => {}
            }
        }
    }
}

impl Stage {
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
