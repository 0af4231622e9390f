//! The folder of one control group, which other executors do not remove while it is locked.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A group of this process, with a lock on its folder that ends with the process, however it ends.
#[derive(Debug)]
pub(super) struct LockedGroup {
    pub(super) folder: PathBuf,
    _lock: File,
}

impl LockedGroup {
    /// Creates the group, or uses an existing one that a predecessor of that name left.
    pub(super) fn at(folder: &Path) -> io::Result<Self> {
        loop {
            match fs::create_dir(folder) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            if let Some(lock) = lock(folder)? {
                return Ok(Self { folder: folder.to_owned(), _lock: lock });
            }
            // Another process removed it before it was locked.
        }
    }

    /// Removes a group that is unlocked and empty.
    pub(super) fn sweep(folder: &Path) {
        let removed = File::open(folder).is_ok_and(|file| {
            let free = file.try_lock().is_ok();
            // Fails if the group is not empty. The lock is held until the group is removed.
            free && fs::remove_dir(folder).is_ok()
        });
        if removed {
            tracing::debug!(folder = %folder.display(), "removed a leftover control group");
        }
    }
}

/// A lock on the folder at this path; `None` if the folder no longer exists.
fn lock(folder: &Path) -> io::Result<Option<File>> {
    let file = match File::open(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    match file.lock_shared() {
        // Without support for locks, groups are not swept either.
        Err(error) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
        _ => {}
    }
    let own = file.metadata()?.ino();
    Ok(fs::metadata(folder).is_ok_and(|there| there.ino() == own).then_some(file))
}

impl Drop for LockedGroup {
    fn drop(&mut self) {
        // A group that contains a process stays; the next one of that name uses it, or a successor sweeps it.
        let _ = fs::remove_dir(&self.folder);
    }
}
