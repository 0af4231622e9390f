//! The folder of one control group, which nobody sweeps away while it is held.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A group of ours. Who holds it has a lock on its folder, which ends with the process, however that ends.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) folder: PathBuf,
    _lock: File,
}

impl Held {
    /// Makes the group, or takes the one that is there: a predecessor of that name left it.
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
            // It was swept away before it was ours.
        }
    }

    /// Removes a group that nobody holds and nobody is in.
    pub(super) fn sweep(folder: &Path) {
        let unheld = File::open(folder).is_ok_and(|file| {
            let free = file.try_lock().is_ok();
            // Fails where something is in it. The lock is held until it is gone.
            free && fs::remove_dir(folder).is_ok()
        });
        if unheld {
            tracing::debug!(folder = %folder.display(), "removed a control group that was left");
        }
    }
}

/// A lock on the folder that is at this path now; `None` if there is none any more.
fn lock(folder: &Path) -> io::Result<Option<File>> {
    let file = match File::open(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    match file.lock_shared() {
        // Where there are no such locks, nobody sweeps.
        Err(error) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
        _ => {}
    }
    let own = file.metadata()?.ino();
    Ok(fs::metadata(folder).is_ok_and(|there| there.ino() == own).then_some(file))
}

impl Drop for Held {
    fn drop(&mut self) {
        // While a process is in it, it stays; the next of that name uses it, or a successor sweeps it away.
        let _ = fs::remove_dir(&self.folder);
    }
}
