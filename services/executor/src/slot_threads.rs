//! The slot threads that run commands, one at a time in each.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use futures::future::LocalBoxFuture;
use input_root::Owner;
use sandbox::{
    Bubblewrap, Cgroups, Cores, Ended, Parent, Sandbox, SandboxError, SharedNetwork, Slot, SlotConfig, User,
    make_nodes,
};
use service::ServiceError;
use settings::{ExecutorSettings, SandboxKind, SandboxSettings, SlotCores};
use tokio::sync::oneshot;
use tokio::time::{error::Elapsed, timeout};
use tracing::warn;

use crate::{folder::ExecutorFolder, place::Place, processors};

/// Time limit for a slot to kill its processes, or to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Stack of a slot thread: a call for each level of an output folder needs some 10 KB without optimisation.
const STACK_BYTES: usize = 8 << 20;

/// The work for an action that waits for a slot thread. Yields the work that the same thread does next, if there is any
/// that another thread need not be woken for.
pub(crate) struct RunInSlot(pub(crate) SlotWork);

type SlotWork = Box<dyn for<'a> FnOnce(&'a mut SlotThread) -> LocalBoxFuture<'a, Option<RunInSlot>> + Send>;

/// All slots, each with its own thread, so that file operations of one action do not block the others. The threads
/// end with the last clone. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct SlotThreads {
    /// Dropped before the threads, which end when the last sender is gone.
    queue: Sender<RunInSlot>,
    /// What slots of services that several actions share are made after, and the folder with their files.
    shared: Arc<(SlotConfig, PathBuf)>,
    /// Number of times that such services started.
    places: Arc<AtomicU64>,
    _threads: Arc<ThreadHandles>,
}

/// The threads of all slots. Dropping waits for their end: no process or control group of a slot outlives it.
#[derive(Debug, Default)]
struct ThreadHandles(Vec<JoinHandle<()>>);

impl Drop for ThreadHandles {
    fn drop(&mut self) {
        let own = std::thread::current().id();
        for thread in self.0.drain(..).filter(|thread| thread.thread().id() != own) {
            // A panic was already reported.
            let _ = thread.join();
        }
    }
}

/// A slot with its thread and files.
#[derive(Debug)]
pub(crate) struct SlotThread {
    config: SlotConfig,
    slot: Option<Slot>,
    /// The slot of an action with services, which shares a network with them.
    beside: Option<Slot>,
    /// Whether the slot must be replaced.
    broken: bool,
    /// Whether others may have the output files of the last command open.
    is_watched: bool,
    folder: PathBuf,
}

impl SlotThreads {
    /// Starts the slots; fails if the machine cannot confine actions as the settings require.
    pub(crate) async fn start(
        settings: &ExecutorSettings,
        folder: &ExecutorFolder,
        owner: Option<Owner>,
    ) -> Result<Self, ServiceError> {
        let failed = |error| ServiceError::failed("preparing the sandbox of actions", error);
        let program = std::env::current_exe()
            .map_err(|error| ServiceError::failed("finding the path of this program", error))?;
        let sandbox = match settings.sandbox {
            SandboxKind::Bubblewrap => Sandbox::Bubblewrap,
            SandboxKind::None => Sandbox::None,
        };
        let mut cgroups = Cgroups::detect(&Parent::default());
        if settings.slot_cores != SlotCores::Shared {
            cgroups = cgroups.with_cpuset(&Parent::default());
        }
        cgroups.sweep();
        let mut threads = ThreadHandles::default();
        let (queue, waiting) = async_channel::unbounded();
        let mut starting = Vec::new();
        let mut template = None;
        let SandboxSettings { read_only, hidden, filter } = settings.sandboxes.clone();
        let bubblewrap = Bubblewrap { filter, nodes: make_nodes(), ..Bubblewrap::default() };
        let mut bubblewrap = bubblewrap.showing(read_only).hiding(hidden);
        if owner.is_none() {
            bubblewrap = bubblewrap.hiding_private();
        }
        let needs_alone = settings.devices.values().any(|all| !all.is_empty()) || settings.action_network;
        let mut cores = processors::of_slots(settings)?.unwrap_or_default().into_iter();
        for number in 0..settings.slots {
            let folder = folder.slot(number);
            std::fs::create_dir_all(&folder)
                .map_err(|error| ServiceError::failed("creating the directory of a slot", error))?;
            let config = SlotConfig {
                name: format!("forebay-{}-{number}", std::process::id()),
                program: program.clone(),
                work: folder.join("work"),
                sandbox,
                bubblewrap: bubblewrap.clone(),
                user: owner.map(|Owner { uid, gid }| User { uid, gid }),
                processes_max: None,
                cgroups: cgroups.clone(),
                cores: cores.next().unwrap_or_default(),
                is_bare: false,
                network: None,
                lease: None,
            };
            template.get_or_insert_with(|| SlotConfig { cores: Cores::default(), ..config.clone() });
            let thread =
                SlotThread { config, slot: None, beside: None, broken: false, is_watched: false, folder };
            let (started, thread) = thread.start_thread(number, needs_alone, waiting.clone())?;
            threads.0.push(thread);
            starting.push(started);
        }
        for started in starting {
            match started.await {
                Ok(outcome) => outcome.map_err(failed)?,
                Err(_) => return Err(ServiceError::failed("starting a slot", "its thread ended")),
            }
        }
        let template =
            template.ok_or_else(|| ServiceError::failed("starting the slots", "there are none"))?;
        let shared = Arc::new((template, folder.services()));
        Ok(Self { queue, shared, places: Arc::default(), _threads: Arc::new(threads) })
    }

    /// A new place for services that several actions share. They use any processor.
    pub(crate) fn place_of_services(&self) -> Place {
        let number = self.places.fetch_add(1, Ordering::Relaxed);
        let (template, folder) = &*self.shared;
        let name = format!("forebay-{}-shared-{number}", std::process::id());
        Place { folder: folder.join(number.to_string()), slot: SlotConfig { name, ..template.clone() } }
    }

    /// Runs `work` in the next free slot.
    pub(crate) fn submit(&self, work: RunInSlot) {
        // Fails only if no thread is left, which cannot happen before this value is dropped.
        if self.queue.try_send(work).is_err() {
            warn!("an action is lost: all slots have ended");
        }
    }
}

/// Reports whether a slot is usable.
type Started = oneshot::Receiver<Result<(), SandboxError>>;

impl SlotThread {
    /// Starts the thread, which runs one action after another. `needs_alone`: some actions need a sandbox of their own.
    fn start_thread(
        mut self,
        number: u16,
        needs_alone: bool,
        queue: Receiver<RunInSlot>,
    ) -> Result<(Started, JoinHandle<()>), ServiceError> {
        let failed = |error| ServiceError::failed("starting the thread of a slot", error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (started, outcome) = oneshot::channel();
        let serve = move || {
            cas::dedicate_thread();
            runtime.block_on(async {
                match self.first_slot(needs_alone).await {
                    // The receiver has gone if another slot failed to start: then all threads end.
                    Ok(()) => {
                        let _ = started.send(Ok(()));
                    }
                    Err(error) => {
                        // The receiver has gone: the failure of another slot was reported.
                        let _ = started.send(Err(error));
                        return;
                    }
                }
                while let Ok(work) = queue.recv().await {
                    let mut next = Some(work);
                    while let Some(RunInSlot(work)) = next {
                        next = work(&mut self).await;
                    }
                }
                self.end_slot().await;
            });
        };
        let thread = std::thread::Builder::new().name(format!("slot-{number}")).stack_size(STACK_BYTES);
        Ok((outcome, thread.spawn(serve).map_err(failed)?))
    }

    /// The directory in which input roots are created. Commands see everything in it.
    pub(crate) fn work(&self) -> &Path {
        &self.config.work
    }

    /// The output files of a command, without empty ones.
    pub(crate) fn console(&self, ended: &Ended) -> input_root::Console {
        let (stdout, stderr) = self.outputs();
        input_root::Console {
            is_watched: self.is_watched,
            stdout: Some(stdout).filter(|_| ended.stdout_bytes > 0),
            stderr: Some(stderr).filter(|_| ended.stderr_bytes > 0),
        }
    }

    /// The paths of the command's stdout and stderr, new files if others may have those of the last command open.
    pub(crate) fn renew_outputs(&mut self, is_watched: bool) -> io::Result<(PathBuf, PathBuf)> {
        let (stdout, stderr) = self.outputs();
        if std::mem::replace(&mut self.is_watched, is_watched) {
            for path in [&stdout, &stderr] {
                match std::fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    Ok(()) | Err(_) => {}
                }
            }
        }
        Ok((stdout, stderr))
    }

    fn outputs(&self) -> (PathBuf, PathBuf) {
        (self.folder.join("stdout"), self.folder.join("stderr"))
    }

    async fn first_slot(&mut self, needs_alone: bool) -> Result<(), SandboxError> {
        let slot = self.slot().await?;
        if needs_alone { slot.check_alone() } else { Ok(()) }
    }

    /// The slot, restarted if it is broken.
    pub(crate) async fn slot(&mut self) -> Result<&mut Slot, SandboxError> {
        if self.broken {
            self.end_slot().await;
        }
        let slot = match self.slot.take() {
            Some(slot) => slot,
            None => Slot::start(self.config.clone()).await?,
        };
        Ok(self.slot.insert(slot))
    }

    /// A slot for one action that shares a network with commands that may keep its files open.
    pub(crate) async fn slot_in(&mut self, network: SharedNetwork) -> Result<&mut Slot, SandboxError> {
        let name = format!("{}-beside", self.config.name);
        let slot =
            Slot::start(SlotConfig { name, network: Some(network), is_bare: true, ..self.config.clone() })
                .await?;
        Ok(self.beside.insert(slot))
    }

    /// The place of services beside its command.
    pub(crate) fn place_of_services(&self) -> Place {
        Place { folder: self.folder.join("services"), slot: self.config.clone() }
    }

    pub(crate) fn config(&self) -> &SlotConfig {
        &self.config
    }

    /// The folder of the slot, which its commands do not see.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Marks the slot as broken: it is replaced before the next action.
    pub(crate) fn break_slot(&mut self) {
        warn!(slot = self.config.name, "restarting a broken slot");
        self.broken = true;
    }

    /// Whether the slot must be replaced.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Called after an action, even if it was stopped: returns when none of its processes is left that could
    /// affect the next action, and whether that is certain.
    pub(crate) async fn clean_up(&mut self) -> bool {
        let beside = match self.beside.take() {
            Some(slot) => in_time(timeout(PATIENCE, slot.stop()).await, &self.config.name, "end"),
            None => true,
        };
        if let Some(slot) = &mut self.slot
            && !self.broken
            && !in_time(timeout(PATIENCE, slot.settle()).await, &self.config.name, "settle")
        {
            self.broken = true;
        }
        (!self.broken || self.end_slot().await) && beside
    }

    /// Ends the slot, if there is one, with its control groups; returns whether all of its processes are dead.
    async fn end_slot(&mut self) -> bool {
        self.broken = false;
        match self.slot.take() {
            // A slot that does not end in time is abandoned: a new one replaces it.
            Some(slot) => in_time(timeout(PATIENCE, slot.stop()).await, &self.config.name, "end"),
            None => true,
        }
    }
}

/// Whether a slot finished an operation in time; logs it if not.
fn in_time(done: Result<Result<(), SandboxError>, Elapsed>, slot: &str, what: &str) -> bool {
    match done {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => warn!(slot, what, error = telemetry::error_chain(&error), "a slot failed"),
        Err(_) => warn!(slot, what, "a slot timed out"),
    }
    false
}
