//! Throws trees away, off the path of any action, and keeps the emptied directories: to make a directory or to free
//! its block is slow where many others were freed lately, to rename one is not.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
};

use rustix::{
    fs::{AtFlags, CWD, FileType},
    io::Errno,
};
use tokio::sync::OwnedSemaphorePermit;

use crate::{Owner, at};

/// Emptied directories that are kept.
const SPARES_MAX: usize = 4096;

/// Directories are made in advance when there are fewer than one in so many of those wanted.
const STOCK_LOW: usize = 2;

/// A directory that ever held more than fits into this is not kept: it would be slow, and tell what it held.
const SPARE_BYTES_MAX: i64 = 4096;

/// Directories that are open at a time while a tree is thrown away; what lies deeper is moved up first.
const OPEN_MAX: u32 = 32;

/// Trees are thrown away by as many threads: they wait for the disk most of the time.
const THREADS: usize = 3;

/// Mode of directories.
pub(crate) const DIRECTORY_MODE: u32 = 0o755;

/// What is to be thrown away, and what ends with it.
#[derive(Debug)]
pub(crate) struct Junk {
    pub(crate) path: PathBuf,
    pub(crate) permit: Option<Arc<OwnedSemaphorePermit>>,
}

/// Takes what is to be thrown away.
#[derive(Debug)]
pub(crate) struct Sweeper {
    yard: Arc<Yard>,
    queue: Sender<Task>,
    /// Directories that are made in advance.
    stock: usize,
    stocking: Arc<AtomicBool>,
}

#[derive(Debug)]
enum Task {
    Sweep(Junk),
    Stock,
}

/// Where things are thrown, and the directories left over.
#[derive(Debug)]
pub(crate) struct Yard {
    trash_path: PathBuf,
    trash: OwnedFd,
    spare: OwnedFd,
    spares: Mutex<Vec<u64>>,
    next: AtomicU64,
    owner: Option<Owner>,
    uid: u32,
}

impl Yard {
    /// `trash` and `spare` are folders of their own, on one file system with all that is thrown away.
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

    /// Moves a name out of the way. Returns where it is now.
    pub(crate) fn throw(&self, from: BorrowedFd<'_>, name: &CStr) -> io::Result<PathBuf> {
        let new_name = self.number().to_string();
        let thrown = match at::rename(from, name, &self.trash, &*new_name) {
            // Moving a directory writes to it, which its owner may have forbidden himself.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::ACCESS) => {
                at::unlock(from, name, self.uid)?;
                at::rename(from, name, &self.trash, &*new_name)
            }
            thrown => thrown,
        };
        thrown.map(|()| self.trash_path.join(new_name))
    }

    /// Moves a folder out of the way. None: there is no such folder.
    pub(crate) fn throw_path(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let name = CString::new(path.as_os_str().as_encoded_bytes())?;
        match self.throw(CWD, &name) {
            Ok(path) => Ok(Some(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory, out of a spare one if there is one, that belongs to whoever runs the actions.
    pub(crate) fn make_dir(&self, at: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
        let spare = self.spares().pop();
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
        self.own(&fd)?;
        Ok(fd)
    }

    /// Sets owner and mode of a directory to what they are for a new one, where they are not.
    pub(crate) fn own(&self, fd: impl AsFd) -> io::Result<()> {
        let fd = fd.as_fd();
        let stat = rustix::fs::fstat(fd)?;
        if let Some(owner) = self.owner
            && (stat.st_uid, stat.st_gid) != (owner.uid, owner.gid)
        {
            at::give(fd, owner.uid, owner.gid)?;
        }
        if at::mode_of(&stat) != DIRECTORY_MODE {
            at::set_mode(fd, DIRECTORY_MODE)?;
        }
        Ok(())
    }

    /// Opens a directory even where its owner, if that is us, took away our right to.
    pub(crate) fn open_any(&self, at: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
        at::open_any(at, name, self.uid)
    }

    fn spares(&self) -> MutexGuard<'_, Vec<u64>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes directories in advance.
    fn stock(&self, wanted: usize) -> io::Result<()> {
        while self.spares().len() < wanted {
            let number = self.number();
            self.make_new(self.spare.as_fd(), &number.to_string())?;
            self.spares().push(number);
        }
        Ok(())
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps an empty directory for later, cleaned of all that could tell of its past; false: it cannot be.
    fn recycle(&self, at: BorrowedFd<'_>, name: &CStr, fd: &OwnedFd) -> io::Result<bool> {
        if self.spares().len() >= SPARES_MAX
            || rustix::fs::fstat(fd)?.st_size > SPARE_BYTES_MAX
            || at::has_extras(fd)?
        {
            return Ok(false);
        }
        self.own(fd)?;
        at::set_times(fd, None)?;
        let number = self.number();
        at::rename(at, name, &self.spare, &*number.to_string())?;
        self.spares().push(number);
        Ok(true)
    }

    /// Throws away what has that name. Directories too deep to be opened are put on `later`.
    fn sweep(&self, at: BorrowedFd<'_>, name: &CStr, open: u32, later: &mut Vec<PathBuf>) -> io::Result<()> {
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
                self.sweep(fd.as_fd(), &entry.name, open + 1, later)?;
            } else {
                later.push(self.throw(fd.as_fd(), &entry.name)?);
            }
        }
        if !self.recycle(at, name, &fd)? {
            rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR)?;
        }
        Ok(())
    }

    fn sweep_path(&self, path: PathBuf) {
        let mut later = vec![path];
        while let Some(path) = later.pop() {
            let Ok(name) = CString::new(path.as_os_str().as_encoded_bytes()) else { continue };
            if let Err(error) = self.sweep(CWD, &name, 0, &mut later) {
                tracing::warn!(path = %path.display(), %error, "the remains of an action cannot be removed");
            }
        }
    }
}

impl Sweeper {
    /// Starts the threads; they end when the last sweeper is dropped. `stock`: directories made in advance.
    pub(crate) fn start(yard: Arc<Yard>, stock: usize) -> io::Result<Self> {
        let (queue, taken) = channel::<Task>();
        let taken = Arc::new(Mutex::new(taken));
        let stocking = Arc::new(AtomicBool::new(false));
        for _ in 0..THREADS {
            let (yard, taken, stocking) = (Arc::clone(&yard), Arc::clone(&taken), Arc::clone(&stocking));
            std::thread::Builder::new().name("input-root-sweep".into()).spawn(move || {
                while let Some(task) = next(&taken) {
                    match task {
                        Task::Sweep(junk) => {
                            yard.sweep_path(junk.path);
                            drop(junk.permit);
                        }
                        Task::Stock => {
                            if let Err(error) = yard.stock(stock) {
                                tracing::debug!(%error, "no directories can be made in advance");
                            }
                            stocking.store(false, Ordering::Release);
                        }
                    }
                }
            })?;
        }
        Ok(Self { yard, queue, stock: stock.min(SPARES_MAX), stocking })
    }

    /// Throws away what was moved out of the way before.
    pub(crate) fn sweep(&self, junk: Junk) {
        // The threads end only after this sender.
        let _ = self.queue.send(Task::Sweep(junk));
    }

    /// Has directories made in advance if there are few.
    pub(crate) fn restock(&self) {
        if self.yard.spares().len() < self.stock.div_ceil(STOCK_LOW)
            && !self.stocking.swap(true, Ordering::AcqRel)
        {
            let _ = self.queue.send(Task::Stock);
        }
    }

    /// Moves a folder out of the way and throws it away; none is fine.
    pub(crate) fn discard(&self, path: &Path, permit: Option<Arc<OwnedSemaphorePermit>>) -> io::Result<()> {
        if let Some(path) = self.yard.throw_path(path)? {
            self.sweep(Junk { path, permit });
        }
        Ok(())
    }
}

fn next(queue: &Mutex<Receiver<Task>>) -> Option<Task> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}
