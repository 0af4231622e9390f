//! The local tier: files appear whole, are touched when a caller relies on them, and pass
//! through the trash when evicted.
//!
//! All functions block; call them from blocking threads.
//!
//! Races with the evictor, which renames a file into the trash, checks again whether it was touched, and then either
//! puts it back or deletes it:
//! - A caller that touches a file checks its path *after* the touch. If the file is still there, any later rename is
//!   followed by the evictor's second check, which sees the touch.
//! - A caller that misses a file looks into the trash, touches the file there and renames it back. Either that rename
//!   or the evictor's deletion comes first; both cannot succeed.
//! - A caller that misses it in both places checks its path once more: it may have been put back in between, and then
//!   it was touched and stays.
//! - A caller that misses a file need not look further if the trash is empty and has not changed since before: then the
//!   file was not in the trash at any time since.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use invariant::Present as _;
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, RenameFlags, renameat2},
    sys::{
        stat::{UtimensatFlags, futimens, utimensat},
        time::TimeSpec,
    },
};
use parking_lot::Mutex;

use crate::{
    CasError,
    layout::{Entry, Layout},
};

/// Resolution of folder modification times: some file systems update them only every few milliseconds.
const TRASH_QUIET: Duration = Duration::from_millis(100);

/// A file written within this time need not be touched. Known blobs are trusted for a time that is shorter than
/// `keep` by much more than this.
const JUST_NOW: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Disk {
    layout: Layout,
    /// The folder of the trash, kept open.
    trash: File,
    /// Time of the last change of the trash when it was last found to be empty, if that was long before.
    trash_empty_since: Mutex<Option<SystemTime>>,
    fsync: bool,
    /// Age at which a file no longer proves that the object of which it is a copy exists; `None` if files are not copies.
    copy_age_max: Option<Duration>,
    damaged: AtomicU64,
}

/// A file that is being written; removed when dropped.
#[derive(Debug)]
pub(crate) struct Temp {
    path: PathBuf,
    file: File,
    kept: bool,
}

impl Temp {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if !self.kept {
            // The evictor removes what is left at its next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Disk {
    pub(crate) fn open(root: &Path, fsync: bool, copy_age_max: Option<Duration>) -> Result<Self, CasError> {
        let layout = Layout::open(root).map_err(|source| CasError::disk("creating folder", root, source))?;
        let trash = layout.trash();
        let trash = File::open(&trash).map_err(|source| CasError::disk("opening", &trash, source))?;
        let (trash_empty_since, damaged) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self { layout, trash, trash_empty_since, fsync, copy_age_max, damaged })
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether the length of a file is right; otherwise it is removed.
    fn is_whole(&self, entry: &Entry, path: &Path, meta: &Metadata) -> bool {
        let is_whole = entry.fits(meta.len());
        if !is_whole {
            self.remove_damaged(path);
        }
        is_whole
    }

    /// Whether a file proves that its blob is stored. An old copy of an object does not: its object may be gone, and is
    /// renewed only when it is looked up. A file system that does not record when files were created has only old ones.
    fn is_proof(&self, meta: &Metadata) -> bool {
        let Some(max) = self.copy_age_max else { return true };
        let is_old = |at: SystemTime| at.elapsed().is_ok_and(|age| age > max);
        meta.created().is_ok_and(|at| !is_old(at))
    }

    /// Number of files that were removed because of a wrong length or wrong content.
    pub(crate) fn damaged(&self) -> u64 {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Extends the life of a file. Returns whether it is there.
    pub(crate) fn touch(&self, entry: &Entry) -> Result<bool, CasError> {
        let started = SystemTime::now();
        let path = self.layout.path(entry);
        if self.touch_path(entry, &path)? {
            return Ok(true);
        }
        Ok(self.look_in_trash(entry, &path, started, Self::touch_path)?.is_some())
    }

    /// Extends the life of many files. Returns for each whether it is there.
    pub(crate) fn touch_many(&self, entries: &[Entry]) -> Result<Vec<bool>, CasError> {
        let started = SystemTime::now();
        let mut there = Vec::with_capacity(entries.len());
        for entry in entries {
            there.push(self.touch_path(entry, &self.layout.path(entry))?);
        }
        if there.iter().all(|there| *there) || self.trash_was_quiet(started) {
            return Ok(there);
        }
        for (entry, there) in entries.iter().zip(&mut there).filter(|(_, there)| !**there) {
            let path = self.layout.path(entry);
            *there = self.look_in_trash(entry, &path, started, Self::touch_path)?.is_some();
        }
        Ok(there)
    }

    /// Whether the trash is empty and has been since before `since`: then no missed file can be in it.
    fn trash_was_quiet(&self, since: SystemTime) -> bool {
        // A folder that was removed and created again changes no more.
        let changed = || self.trash.metadata().ok().filter(|meta| meta.nlink() > 0)?.modified().ok();
        let is_old = |at: &SystemTime| at.checked_add(TRASH_QUIET).is_some_and(|at| at < since);
        let known = *self.trash_empty_since.lock();
        if known.filter(is_old).is_some_and(|known| changed() == Some(known)) {
            return true;
        }
        let is_empty = fs::read_dir(self.layout.trash()).is_ok_and(|mut names| names.next().is_none());
        let at = changed().filter(|at| is_empty && is_old(at));
        *self.trash_empty_since.lock() = at;
        at.is_some()
    }

    /// Handles a file that was missed after `started`: takes it out of the trash if it is there, and tries again.
    fn look_in_trash<T: Found>(
        &self,
        entry: &Entry,
        path: &Path,
        started: SystemTime,
        again: impl Fn(&Self, &Entry, &Path) -> Result<T, CasError>,
    ) -> Result<Option<T>, CasError> {
        if self.trash_was_quiet(started) {
            return Ok(None);
        }
        for _ in 0..4 {
            let restored = self.restore(entry, path)?;
            let found = again(self, entry, path)?;
            if found.is_found() {
                return Ok(Some(found));
            }
            if !restored {
                break;
            }
        }
        Ok(None)
    }

    fn restore(&self, entry: &Entry, path: &Path) -> Result<bool, CasError> {
        let trashed = self.layout.trash_path(entry);
        let touched = touch_now(&trashed).map_err(|source| CasError::disk("touching", &trashed, source))?;
        if touched.is_none() {
            return Ok(false);
        }
        absent_is_false(fs::rename(&trashed, path).map(|()| true))
            .map_err(|source| CasError::disk("restoring", &trashed, source))
    }

    fn touch_path(&self, entry: &Entry, path: &Path) -> Result<bool, CasError> {
        let touched = touch_now(path).map_err(|source| CasError::disk("touching", path, source))?;
        Ok(touched.is_some_and(|meta| self.is_whole(entry, path, &meta) && self.is_proof(&meta)))
    }

    /// Opens a file for reading.
    pub(crate) fn open_file(&self, entry: &Entry) -> Result<Option<File>, CasError> {
        let started = SystemTime::now();
        let path = self.layout.path(entry);
        let opened = match self.open_path(entry, &path)? {
            None => self.look_in_trash(entry, &path, started, Self::open_path)?.flatten(),
            opened => opened,
        };
        Ok(opened.map(|(file, _)| file))
    }

    /// Opens a file for reading, and extends its life unless `is_fresh` accepts the time since that was last
    /// done. Returns that time too.
    pub(crate) fn open_and_touch(
        &self,
        entry: &Entry,
        is_fresh: impl Fn(Duration) -> bool,
    ) -> Result<Option<(File, Duration)>, CasError> {
        let path = self.layout.path(entry);
        if let Some((file, meta)) = self.open_path(entry, &path)? {
            let age = meta.modified().ok().and_then(|at| at.elapsed().ok());
            if let Some(age) = age.filter(|age| is_fresh(*age) && self.is_proof(&meta)) {
                return Ok(Some((file, age)));
            }
        }
        if !self.touch(entry)? {
            return Ok(None);
        }
        Ok(self.open_file(entry)?.map(|file| (file, Duration::ZERO)))
    }

    fn open_path(&self, entry: &Entry, path: &Path) -> Result<Option<(File, Metadata)>, CasError> {
        let failed = |source| CasError::disk("opening", path, source);
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let meta = file.metadata().map_err(failed)?;
        Ok(self.is_whole(entry, path, &meta).then_some((file, meta)))
    }

    /// Removes a file whose content does not match its name.
    pub(crate) fn remove_damaged(&self, path: &Path) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(path = %path.display(), "removed a damaged file from the store");
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "cannot remove a damaged file");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Creates a new file with the permissions `mode`.
    pub(crate) fn temp(&self, mode: u32) -> Result<Temp, CasError> {
        let path = self.layout.temp_path();
        let file = create(&path, mode).map_err(|source| CasError::disk("creating", &path, source))?;
        Ok(Temp { path, file, kept: false })
    }

    /// Creates a new file with this content in the folder of `entry`.
    pub(crate) fn temp_beside(&self, entry: &Entry, mode: u32, content: &[u8]) -> Result<Temp, CasError> {
        let path = self.layout.temp_path_beside(entry);
        let failed = |source| CasError::disk("creating", &path, source);
        let file = match create(&path, mode) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_folder(&path).and_then(|()| create(&path, mode)).map_err(failed)?
            }
            outcome => outcome.map_err(failed)?,
        };
        let mut temp = Temp { path, file, kept: false };
        let written = temp.file.write_all(content);
        written.map_err(|source| CasError::disk("writing", temp.path(), source))?;
        Ok(temp)
    }

    /// Moves a file that is open as `file` into `tmp/`. It is removed when
    /// dropped, unless [`Temp::give_back`] is called.
    pub(crate) fn move_to_temp(&self, from: &Path, file: File) -> io::Result<Temp> {
        let path = self.layout.temp_path();
        fs::rename(from, &path)?;
        Ok(Temp { path, file, kept: false })
    }

    /// Makes a complete file visible as `entry`. Returns the bytes of disk that it added.
    pub(crate) fn commit(&self, mut temp: Temp, entry: &Entry, replace: bool) -> Result<u64, CasError> {
        let path = self.layout.path(entry);
        let failed = |source| CasError::disk("storing", &path, source);
        if self.fsync {
            temp.file.sync_all().map_err(failed)?;
        }
        let meta = temp.file.metadata().map_err(failed)?;
        // Its life starts now, however long the writing took.
        if !meta.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age < JUST_NOW)) {
            futimens(&temp.file, &TimeSpec::UTIME_NOW, &TimeSpec::UTIME_NOW).map_err(|e| failed(e.into()))?;
        }
        let used = meta.blocks() * 512;
        // A new copy of an object takes the place of an old one.
        let replace = replace || self.copy_age_max.is_some();
        let mut before = 0;
        for _ in 0..8 {
            let renamed = match rename(&temp.path, &path, false) {
                Err(Errno::EEXIST) if replace => {
                    before = fs::metadata(&path).map_or(0, |meta| meta.blocks() * 512);
                    rename(&temp.path, &path, true)
                }
                renamed => renamed,
            };
            match renamed {
                Ok(()) => {
                    temp.kept = true;
                    self.sync_folder(&path).map_err(failed)?;
                    return Ok(used.saturating_sub(before));
                }
                Err(Errno::ENOENT) => {
                    // If the temporary file itself is gone, there is no point in creating a folder for it.
                    fs::symlink_metadata(&temp.path).and_then(|_| self.make_folder(&path)).map_err(failed)?;
                }
                Err(Errno::EEXIST) => {
                    if self.touch(entry)? {
                        return Ok(0);
                    }
                }
                Err(error) => return Err(failed(error.into())),
            }
        }
        Err(failed(io::Error::from(Errno::EEXIST)))
    }

    /// Creates the folder of two hex digits, on demand for its first file.
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().present_or(path, "the folder of a file in the store");
        fs::create_dir_all(folder)?;
        self.sync_folder(folder)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        if self.fsync
            && let Some(folder) = path.parent()
        {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }
}

impl Temp {
    /// Moves a file back to its original path, on a best-effort basis.
    pub(crate) fn give_back(mut self, to: &Path) {
        self.kept = rename(&self.path, to, false).is_ok();
    }
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(path)
}

/// Whether a look-up found its file.
trait Found {
    fn is_found(&self) -> bool;
}

impl Found for bool {
    fn is_found(&self) -> bool {
        *self
    }
}

impl Found for Option<(File, Metadata)> {
    fn is_found(&self) -> bool {
        self.is_some()
    }
}

fn rename(from: &Path, to: &Path, replace: bool) -> nix::Result<()> {
    let plain = || fs::rename(from, to).map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or_default()));
    if replace {
        return plain();
    }
    match renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE) {
        // Some file systems do not support this flag.
        Err(Errno::EINVAL | Errno::ENOSYS) => link_and_remove(from, to),
        outcome => outcome,
    }
}

/// Renames a file unless `to` exists.
fn link_and_remove(from: &Path, to: &Path) -> nix::Result<()> {
    let errno = |e: io::Error| Errno::from_raw(e.raw_os_error().unwrap_or_default());
    fs::hard_link(from, to).map_err(errno)?;
    fs::remove_file(from).map_err(errno)
}

/// Moves a file from the trash back to its path, unless another file is there by now.
pub(crate) fn put_back(trashed: &Path, path: &Path) {
    match rename(trashed, path, false) {
        // Gone: another process has put it back.
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(Errno::EEXIST) => {
            // If this fails, the next evictor removes it.
            let _ = fs::remove_file(trashed);
        }
        // It stays in the trash, where readers find it, until the next evictor starts.
        Err(error) => tracing::warn!(path = %trashed.display(), %error, "cannot restore an evicted file"),
    }
}

/// Touches a file. Returns what is there afterwards: an evictor that takes it away later sees the touch.
///
/// A successful touch does not prove that the file is still there. The kernel finds the file first and touches it then: between the
/// two, an evictor can move it away and find it old.
pub(crate) fn touch_now(path: &Path) -> io::Result<Option<Metadata>> {
    let now = TimeSpec::UTIME_NOW;
    match utimensat(AT_FDCWD, path, &now, &now, UtimensatFlags::NoFollowSymlink) {
        Ok(()) => match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            outcome => outcome.map(Some),
        },
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn absent_is_false(outcome: io::Result<bool>) -> io::Result<bool> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        outcome => outcome,
    }
}
