//! Input roots and outputs of actions: a folder is set up from the store before an action runs, and the outputs of
//! the action are stored afterwards.
//!
//! - [`InputRoots::prepare`]: files are hard links to the store's own, read-only and not owned by the action; whole
//!   directories of earlier actions are reused with one rename.
//! - [`InputRoots::collect`]: outputs, standard output and standard error as fields of an action result.
//! - [`InputRoots::release`]: the folder is checked and kept for later actions, or else removed; this happens outside
//!   the critical path of actions.
//! - [`local`]: the same for the machine of a client: folders to blobs, results to folders.

mod at;
mod audit;
mod collect;
mod error;
pub mod local;
mod make;
mod plan;
mod pool;
mod prepare;
mod prepared_dir;
mod spec;
mod sweep;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use cas::Cas;
use reapi::directory::AbsoluteTargets;
use tokio::sync::Semaphore;

pub use crate::{
    collect::{Collected, Console},
    error::{CollectError, InputError},
    pool::PoolUse,
    spec::{NODE_PROPERTIES, OutputSpec},
};
use crate::{
    plan::Plans,
    pool::{Folders, Pool, PoolLimits},
    prepare::TreeChecker,
    prepared_dir::PreparedDir,
    sweep::{Recycler, Removal, Sweeper},
};

/// Maximum number of released input roots that wait to be checked or removed. Further releases wait.
const BACKLOG: u32 = 256;

/// Number of directory entries that are remembered.
const PLANNED_ENTRIES: u64 = 400_000;

/// The user that runs the actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// Configuration of input roots.
#[derive(Clone)]
pub struct InputRootsConfig {
    /// The store with the blobs.
    pub cas: Cas,
    /// Work folder, owned by this process; slots lie on the same file system, and so does the store
    /// if files are linked.
    pub root: PathBuf,
    /// The user that runs the actions, if that is another user: it becomes the owner of directories. Files are linked
    /// only if it is set, since the owner of a file could write to it.
    pub owner: Option<Owner>,
    /// Link files instead of copying them, where it is safe.
    pub link: bool,
    /// Maximum number of files, directories and symlinks that are kept of earlier actions.
    pub kept_entries_max: u64,
    /// Maximum bytes of kept files; files that are shared with the store count too.
    pub kept_bytes_max: u64,
    /// How long unused trees are kept. Limits how long evicted blobs of the store still occupy the disk.
    pub kept_idle: Duration,
    /// Number of empty directories that are created in advance while no action waits for them.
    pub stock: usize,
    /// Maximum number of files, directories and symlinks of an input root.
    pub entries_max: u64,
    /// Maximum number of files, directories and symlinks in the outputs of an action.
    pub output_entries_max: u64,
    pub absolute_targets: AbsoluteTargets,
    /// Maximum bytes of standard output, and of standard error, that are put into the result itself. 0: none.
    pub inline_bytes: u64,
}

impl InputRootsConfig {
    /// The defaults, for a store, a work folder and an owner.
    pub fn new(cas: Cas, root: impl Into<PathBuf>, owner: Option<Owner>) -> Self {
        Self {
            cas,
            root: root.into(),
            owner,
            link: true,
            kept_entries_max: 200_000,
            kept_bytes_max: 20 << 30,
            kept_idle: Duration::from_secs(600),
            stock: 512,
            entries_max: 2_000_000,
            output_entries_max: 1_000_000,
            absolute_targets: AbsoluteTargets::Refused,
            inline_bytes: 64 << 10,
        }
    }
}

/// Sets up input roots and collects outputs. Cheap to clone.
#[derive(Clone)]
pub struct InputRoots {
    inner: Arc<Inner>,
}

struct Inner {
    config: InputRootsConfig,
    plans: Plans,
    recycler: Arc<Recycler>,
    pool: Arc<Pool>,
    sweeper: Arc<Sweeper>,
    checker: TreeChecker,
    backlog: Arc<Semaphore>,
    next: AtomicU64,
    /// Whether files are linked.
    link: bool,
    /// Whether the clock of file changes is so coarse that a change may go unnoticed.
    coarse_clock: bool,
}

/// The folder of an action. Removed when dropped without [`InputRoots::release`].
pub struct InputRoot {
    folder: Arc<Folder>,
    made: PreparedDir,
}

impl InputRoot {
    pub fn path(&self) -> &Path {
        &self.folder.path
    }
}

/// A folder that is removed once unused, unless it was moved by then.
struct Folder {
    path: PathBuf,
    sweeper: Arc<Sweeper>,
    moved: AtomicBool,
}

impl Folder {
    fn new(path: PathBuf, sweeper: &Arc<Sweeper>) -> Self {
        Self { path, sweeper: Arc::clone(sweeper), moved: AtomicBool::new(false) }
    }

    /// Moves the folder to a path where another owner is responsible for it.
    fn move_to(&self, path: &Path) -> std::io::Result<()> {
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
            sweeper.sweep(Removal { path, permit: None });
        }
        sweeper.restock();
        let (entries, bytes) = (config.kept_entries_max, config.kept_bytes_max);
        let pool =
            Arc::new(Pool::new(folders.kept.clone(), PoolLimits { entries, bytes, idle: config.kept_idle }));
        let checker = TreeChecker::start(Arc::clone(&recycler), Arc::clone(&pool), Arc::clone(&sweeper))
            .map_err(InputError::io("starting a thread for", &config.root))?;
        let us = rustix::process::geteuid().as_raw();
        let link = config.link && us == 0 && config.owner.is_some_and(|owner| owner.uid != us);
        let plans =
            Plans::new(config.cas.clone(), PLANNED_ENTRIES, config.entries_max, config.absolute_targets);
        let backlog = Arc::new(Semaphore::new(BACKLOG as usize));
        let next = AtomicU64::new(0);
        let coarse_clock = coarse_clock();
        let inner =
            Inner { config, plans, recycler, pool, sweeper, checker, backlog, next, link, coarse_clock };
        Ok(Self { inner: Arc::new(inner) })
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

    fn next(&self) -> u64 {
        self.inner.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// Moves everything that an earlier process left to a place where it does not interfere.
fn leftovers(folders: &Folders) -> Result<Vec<PathBuf>, InputError> {
    let failed = || InputError::io("reading folder", &folders.trash);
    let mut paths = vec![folders.kept.clone(), folders.spare.clone()];
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

/// Whether file times have only the resolution of clock ticks, as before Linux 6.13.
fn coarse_clock() -> bool {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (6, 13)
}
