//! Removes trees outside the critical path of actions, and keeps the emptied directories for reuse: creating a
//! directory or freeing its block is slow soon after many others were freed, while renaming one is not.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
};

use invariant::impossible;
use parking_lot::Mutex;
use rustix::{
    fs::{AtFlags, CWD, FileType},
    io::Errno,
};
use tokio::sync::OwnedSemaphorePermit;

use crate::{Owner, at};

/// Maximum number of emptied directories that are kept.
const SPARES_MAX: usize = 4096;

/// Directories are created in advance when fewer than one in this many of the target number are left.
const STOCK_LOW: usize = 2;

/// Maximum size in bytes that a kept directory may ever have had: a larger one would be slow, and
/// reveal its earlier content.
const SPARE_BYTES_MAX: i64 = 4096;

/// Maximum number of directories open at once during a removal; deeper ones are moved up first.
const OPEN_MAX: u32 = 32;

/// Number of threads that remove trees: they wait for the disk most of the time.
const THREADS: usize = 3;

/// Mode of directories that are set up.
pub(crate) const DIRECTORY_MODE: u32 = 0o755;

/// A path to remove, and the permit that is released with it.
#[derive(Debug)]
pub(crate) struct Removal {
    pub(crate) path: PathBuf,
    pub(crate) permit: Option<Arc<OwnedSemaphorePermit>>,
    /// Whether its directories may be used again: no process can have them open.
    pub(crate) recycles: bool,
}

/// Accepts paths to remove and passes them to its threads.
#[derive(Debug)]
pub(crate) struct Sweeper {
    recycler: Arc<Recycler>,
    queue: Sender<Task>,
    /// Number of directories that are created in advance.
    stock: usize,
    stocking: Arc<AtomicBool>,
}

#[derive(Debug)]
enum Task {
    Sweep(Removal),
    Stock,
}

/// The trash folder, and the folder of spare directories.
#[derive(Debug)]
pub(crate) struct Recycler {
    trash_path: PathBuf,
    trash: OwnedFd,
    spare: OwnedFd,
    spares: Mutex<Vec<u64>>,
    next: AtomicU64,
    owner: Option<Owner>,
    uid: u32,
}

impl Recycler {
    /// `trash` and `spare` are dedicated folders on the same file system as everything to be removed.
    pub(crate) fn open(trash: &Path, spare: &Path, owner: Option<Owner>) -> io::Result<Self> {
        Ok(Self {
            trash_path: trash.to_owned(),
            trash: at::open_path(trash)?,
            spare: at::open_path(spare)?,
            spares: Mutex::default(),
            next: AtomicU64::new(0),
            owner,
            uid: rustix::process::geteuid().as_raw(),
        })
    }

    /// Moves a name into the trash. Returns its path there.
    pub(crate) fn move_to_trash(&self, from: BorrowedFd<'_>, name: &CStr) -> io::Result<PathBuf> {
        let new_name = self.number().to_string();
        let moved = match at::rename(from, name, &self.trash, &*new_name) {
            // Moving a directory writes to it, which its owner may have forbidden by its mode.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::ACCESS) => {
                at::unlock(from, name, self.uid)?;
                at::rename(from, name, &self.trash, &*new_name)
            }
            moved => moved,
        };
        moved.map(|()| self.trash_path.join(new_name))
    }

    /// Moves a folder into the trash. `None` if the folder does not exist.
    pub(crate) fn move_path_to_trash(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let name = CString::new(path.as_os_str().as_encoded_bytes())?;
        match self.move_to_trash(CWD, &name) {
            Ok(path) => Ok(Some(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a directory for the user that runs the actions; reuses a spare one if possible.
    pub(crate) fn make_dir(&self, at: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
        let spare = self.spares.lock().pop();
        if let Some(spare) = spare
            && rustix::fs::renameat_with(
                &self.spare,
                &*spare.to_string(),
                at,
                name,
                rustix::fs::RenameFlags::NOREPLACE,
            )
            .is_ok()
        {
            return at::open_dir(at, name);
        }
        self.make_new(at, name)
    }

    fn make_new(&self, at: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
        rustix::fs::mkdirat(at, name, rustix::fs::Mode::from_raw_mode(DIRECTORY_MODE))?;
        let fd = at::open_dir(at, name)?;
        self.reset_owner(&fd)?;
        Ok(fd)
    }

    /// Sets owner and mode of a directory to those of a new one, unless they already match.
    pub(crate) fn reset_owner(&self, fd: impl AsFd) -> io::Result<()> {
        let fd = fd.as_fd();
        let stat = rustix::fs::fstat(fd)?;
        if let Some(owner) = self.owner
            && (stat.st_uid, stat.st_gid) != (owner.uid, owner.gid)
        {
            at::set_owner(fd, owner.uid, owner.gid)?;
        }
        if at::mode_of(&stat) != DIRECTORY_MODE {
            at::set_mode(fd, DIRECTORY_MODE)?;
        }
        Ok(())
    }

    /// Opens a directory even if its owner, when that is us, removed our permission.
    pub(crate) fn open_any(&self, at: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
        at::open_any(at, name, self.uid)
    }

    /// Creates directories in advance.
    fn stock(&self, wanted: usize) -> io::Result<()> {
        while self.spares.lock().len() < wanted {
            let number = self.number();
            self.make_new(self.spare.as_fd(), &number.to_string())?;
            self.spares.lock().push(number);
        }
        Ok(())
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps an empty directory for reuse and removes all traces of its past. Returns false if that is impossible.
    fn recycle(&self, at: BorrowedFd<'_>, name: &CStr, fd: &OwnedFd) -> io::Result<bool> {
        if self.spares.lock().len() >= SPARES_MAX
            || rustix::fs::fstat(fd)?.st_size > SPARE_BYTES_MAX
            || at::has_extras(fd)?
        {
            return Ok(false);
        }
        self.reset_owner(fd)?;
        at::set_times(fd, None)?;
        let number = self.number();
        at::rename(at, name, &self.spare, &*number.to_string())?;
        self.spares.lock().push(number);
        Ok(true)
    }

    /// Removes what has that name. Directories that are too deep to be opened are put on `later`.
    fn sweep(
        &self,
        (at, name): (BorrowedFd<'_>, &CStr),
        recycles: bool,
        open: u32,
        later: &mut Vec<PathBuf>,
    ) -> io::Result<()> {
        let fd = match self.open_any(at, name) {
            Ok(fd) => fd,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if at::is_no_directory(&error) => {
                return Ok(rustix::fs::unlinkat(at, name, AtFlags::empty())?);
            }
            Err(error) => return Err(error),
        };
        if self.owner.is_none() && at::mode_of(&rustix::fs::fstat(&fd)?) & 0o700 != 0o700 {
            at::set_mode(&fd, DIRECTORY_MODE)?;
        }
        for entry in at::entries(&fd)? {
            if entry.kind != FileType::Directory {
                rustix::fs::unlinkat(&fd, &*entry.name, AtFlags::empty())?;
            } else if open < OPEN_MAX {
                self.sweep((fd.as_fd(), &entry.name), recycles, open + 1, later)?;
            } else {
                later.push(self.move_to_trash(fd.as_fd(), &entry.name)?);
            }
        }
        if !recycles || !self.recycle(at, name, &fd)? {
            rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR)?;
        }
        Ok(())
    }

    fn sweep_path(&self, path: PathBuf, recycles: bool) {
        let mut later = vec![path];
        while let Some(path) = later.pop() {
            let Ok(name) = CString::new(path.as_os_str().as_encoded_bytes()) else {
                impossible!("the path {} in the trash contains a zero byte", path.display());
                continue;
            };
            if let Err(error) = self.sweep((CWD, &name), recycles, 0, &mut later) {
                tracing::warn!(path = %path.display(), %error, "cannot remove the remains of an action");
            }
        }
    }
}

impl Sweeper {
    /// Starts the threads, which end when the last sweeper is dropped. `stock`: number of directories
    /// to create in advance.
    pub(crate) fn start(recycler: Arc<Recycler>, stock: usize) -> io::Result<Self> {
        let (queue, taken) = channel::<Task>();
        let taken = Arc::new(Mutex::new(taken));
        let stocking = Arc::new(AtomicBool::new(false));
        for _ in 0..THREADS {
            let (recycler, taken, stocking) =
                (Arc::clone(&recycler), Arc::clone(&taken), Arc::clone(&stocking));
            std::thread::Builder::new().name("input-root-sweep".into()).spawn(move || {
                while let Some(task) = next(&taken) {
                    match task {
                        Task::Sweep(removal) => {
                            recycler.sweep_path(removal.path, removal.recycles);
                            drop(removal.permit);
                        }
                        Task::Stock => {
                            if let Err(error) = recycler.stock(stock) {
                                tracing::debug!(%error, "cannot create directories in advance");
                            }
                            stocking.store(false, Ordering::Release);
                        }
                    }
                }
            })?;
        }
        Ok(Self { recycler, queue, stock: stock.min(SPARES_MAX), stocking })
    }

    /// Removes what was already moved into the trash.
    pub(crate) fn sweep(&self, removal: Removal) {
        // The threads end only after this sender is dropped.
        let _ = self.queue.send(Task::Sweep(removal));
    }

    /// Creates directories in advance if few are left.
    pub(crate) fn restock(&self) {
        if self.recycler.spares.lock().len() < self.stock.div_ceil(STOCK_LOW)
            && !self.stocking.swap(true, Ordering::AcqRel)
        {
            // The threads end only after this sender is dropped.
            let _ = self.queue.send(Task::Stock);
        }
    }

    /// Moves a folder into the trash and removes it. A missing folder is not an error.
    pub(crate) fn discard(&self, path: &Path, permit: Option<Arc<OwnedSemaphorePermit>>) -> io::Result<()> {
        if let Some(path) = self.recycler.move_path_to_trash(path)? {
            self.sweep(Removal { path, permit, recycles: false });
        }
        Ok(())
    }
}

fn next(queue: &Mutex<Receiver<Task>>) -> Option<Task> {
    queue.lock().recv().ok()
}
