//! The work folder of input roots, and what its input roots share.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::SystemTime,
};

use cas::Cas;
use rustix::fs::CWD;
use tokio::sync::Semaphore;

use crate::{
    InputError, InputRootsConfig, PoolUse, at,
    plan::Plans,
    pool::{Folders, Pool, PoolLimits},
    prepared_dir::PreparedDir,
    sweep::{Recycler, Removal, Sweeper},
    tree_checker::TreeChecker,
};

/// Maximum number of released input roots that wait to be checked or removed. Further releases wait.
const BACKLOG: u32 = 256;

/// Number of changes whose times are compared; they take less than a clock tick together.
const CLOCK_PROBES: u32 = 8;

/// Number of directory entries that are remembered.
const PLANNED_ENTRIES: u64 = 400_000;

/// Sets up input roots and collects outputs. Cheap to clone.
#[derive(Clone)]
pub struct InputRoots {
    pub(crate) inner: Arc<Inner>,
    /// Where outputs are stored; none: in the store of the configuration.
    outputs: Option<Cas>,
}

/// State shared by all copies of an [`InputRoots`].
pub(crate) struct Inner {
    pub(crate) config: InputRootsConfig,
    pub(crate) plans: Plans,
    pub(crate) recycler: Arc<Recycler>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) sweeper: Arc<Sweeper>,
    pub(crate) checker: TreeChecker,
    pub(crate) backlog: Arc<Semaphore>,
    next: AtomicU64,
    /// Whether files are linked.
    pub(crate) link: bool,
    /// Whether the clock of file changes is so coarse that a change may go unnoticed.
    pub(crate) coarse_clock: bool,
}

/// The folder of an action. Removed when dropped without [`InputRoots::release`].
pub struct InputRoot {
    pub(crate) folder: Arc<Folder>,
    pub(crate) made: PreparedDir,
    /// Whether commands that outlive the action may still have its files and folders open.
    pub(crate) is_watched: bool,
}

impl InputRoot {
    pub fn path(&self) -> &Path {
        &self.folder.path
    }

    /// Marks the folder of an action that can pass descriptors to others over a network: outputs are copied, the rest is removed.
    #[must_use]
    pub fn watched(self, is_watched: bool) -> Self {
        Self { is_watched, ..self }
    }

    pub fn is_watched(&self) -> bool {
        self.is_watched
    }
}

/// A folder that is removed once unused, unless it was moved by then.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) sweeper: Arc<Sweeper>,
    moved: AtomicBool,
}

impl Folder {
    pub(crate) fn new(path: PathBuf, sweeper: &Arc<Sweeper>) -> Self {
        Self { path, sweeper: Arc::clone(sweeper), moved: AtomicBool::new(false) }
    }

    /// Moves the folder to a path where another owner is responsible for it.
    pub(crate) fn move_to(&self, path: &Path) -> std::io::Result<()> {
        at::rename(rustix::fs::CWD, &*self.path, rustix::fs::CWD, path)?;
        self.moved.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.moved.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.sweeper.discard(&self.path, None) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove an input root");
        }
    }
}

impl InputRoots {
    /// Opens the work folder and removes what an earlier process left in it.
    pub fn open(config: InputRootsConfig) -> Result<Self, InputError> {
        let folders = Folders::of(&config.root);
        let make = |path: &Path| std::fs::create_dir_all(path).map_err(InputError::io("creating", path));
        make(&folders.trash)?;
        let left = leftovers(&folders)?;
        make(&folders.kept)?;
        make(&folders.spare)?;
        let recycler = Recycler::open(&folders.trash, &folders.spare, config.owner);
        let recycler = Arc::new(recycler.map_err(InputError::io("opening", &config.root))?);
        let sweeper = Sweeper::start(Arc::clone(&recycler), config.stock)
            .map_err(InputError::io("starting threads for", &config.root))?;
        let sweeper = Arc::new(sweeper);
        for path in left {
            sweeper.sweep(Removal { path, permit: None, recycles: false });
        }
        sweeper.restock();
        let (entries, bytes) = (config.kept_entries_max, config.kept_bytes_max);
        let pool =
            Arc::new(Pool::new(folders.kept.clone(), PoolLimits { entries, bytes, idle: config.kept_idle }));
        let coarse_clock =
            has_coarse_clock(&folders.clock).map_err(InputError::io("reading the clock of", &config.root))?;
        let (shared, kept) = (Arc::clone(&recycler), Arc::clone(&pool));
        let checker = TreeChecker::start(shared, kept, Arc::clone(&sweeper), !coarse_clock)
            .map_err(InputError::io("starting a thread for", &config.root))?;
        let us = rustix::process::geteuid().as_raw();
        let link = config.link && us == 0 && config.owner.is_some_and(|owner| owner.uid != us);
        let plans =
            Plans::new(config.cas.clone(), PLANNED_ENTRIES, config.entries_max, config.absolute_targets);
        let backlog = Arc::new(Semaphore::new(BACKLOG as usize));
        let next = AtomicU64::new(0);
        let inner =
            Inner { config, plans, recycler, pool, sweeper, checker, backlog, next, link, coarse_clock };
        Ok(Self { inner: Arc::new(inner), outputs: None })
    }

    /// The same, with outputs stored by this handle of the store: for the trust zone of an action.
    #[must_use]
    pub fn storing_by(&self, outputs: Cas) -> Self {
        Self { outputs: Some(outputs), ..self.clone() }
    }

    pub(crate) fn output_store(&self) -> &Cas {
        self.outputs.as_ref().unwrap_or(&self.inner.config.cas)
    }

    /// Whether files are linked to the store's instead of copied.
    pub fn links(&self) -> bool {
        self.inner.link
    }

    /// Returns the number and size of the trees kept of earlier actions.
    pub fn kept(&self) -> PoolUse {
        self.inner.pool.in_use()
    }

    /// Removes everything kept of earlier actions: for a disk that is full.
    pub fn forget_kept(&self) {
        for folder in self.inner.pool.clear() {
            if let Err(error) = self.inner.sweeper.discard(&folder, None) {
                tracing::warn!(path = %folder.display(), %error, "cannot remove an input root");
            }
        }
    }

    /// Waits until everything released is checked or removed.
    pub async fn settled(&self) {
        // Acquired only to wait. The semaphore is never closed.
        drop(self.inner.backlog.acquire_many(BACKLOG).await);
    }

    pub(crate) fn next(&self) -> u64 {
        self.inner.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// Moves everything that an earlier process left to a place where it does not interfere.
fn leftovers(folders: &Folders) -> Result<Vec<PathBuf>, InputError> {
    let failed = || InputError::io("reading folder", &folders.trash);
    let mut paths = vec![folders.kept.clone(), folders.spare.clone(), folders.clock.clone()];
    for entry in std::fs::read_dir(&folders.trash).map_err(failed())? {
        paths.push(entry.map_err(failed())?.path());
    }
    // New names are plain numbers; those of the previous start may still be there.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let mut found = Vec::new();
    for (number, path) in paths.into_iter().enumerate() {
        let old = folders.trash.join(format!("old-{now}-{number}"));
        match std::fs::rename(&path, &old) {
            Ok(()) => found.push(old),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(InputError::io("clearing", &path)(source)),
        }
    }
    Ok(found)
}

/// Whether two changes of a file may have the same time: before Linux 6.13, and on file systems that count in clock
/// ticks even later. Creates and removes the directory `probe`.
fn has_coarse_clock(probe: &Path) -> std::io::Result<bool> {
    let mut is_coarse = false;
    for _ in 0..CLOCK_PROBES {
        std::fs::create_dir(probe)?;
        let before = at::changed_at(&at::stat(CWD, probe)?);
        std::fs::create_dir(probe.join("change"))?;
        is_coarse |= at::changed_at(&at::stat(CWD, probe)?) == before;
        std::fs::remove_dir_all(probe)?;
    }
    Ok(is_coarse)
}
