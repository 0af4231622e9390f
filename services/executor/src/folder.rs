//! The executor's folder: held by a lock, so that a successor knows that the one before is dead.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use model::ExecutorId;
use nix::fcntl::{Flock, FlockArg};

/// Executors on one data folder at most.
const FOLDERS_MAX: u32 = 1000;

/// A folder that no other executor uses while this lives.
#[derive(Debug)]
pub(crate) struct ExecutorFolder {
    path: PathBuf,
    _lock: Flock<fs::File>,
}

impl ExecutorFolder {
    /// The first folder under `root` that nobody holds.
    pub(crate) fn hold(root: &Path) -> io::Result<Self> {
        for number in 0..FOLDERS_MAX {
            let path = root.join(number.to_string());
            fs::create_dir_all(&path)?;
            let file = fs::File::create(path.join("lock"))?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => {
                    let held = Self { path, _lock: lock };
                    held.clear()?;
                    return Ok(held);
                }
                Err((_, nix::errno::Errno::EWOULDBLOCK)) => {}
                Err((_, error)) => return Err(error.into()),
            }
        }
        Err(io::Error::other(format!("all {FOLDERS_MAX} executor folders are in use")))
    }

    /// Removes what an executor that was killed left.
    fn clear(&self) -> io::Result<()> {
        for name in ["roots", "slots"] {
            let path = self.path.join(name);
            match fs::remove_dir_all(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            fs::create_dir(&path)?;
        }
        Ok(())
    }

    /// Where input roots are made.
    pub(crate) fn roots(&self) -> PathBuf {
        self.path.join("roots")
    }

    /// Where a slot keeps what its command writes to stdout and stderr.
    pub(crate) fn slot(&self, number: u16) -> PathBuf {
        self.path.join("slots").join(number.to_string())
    }

    /// The id of whoever had the folder before, or of our own last session.
    pub(crate) fn predecessor(&self) -> Option<ExecutorId> {
        fs::read_to_string(self.session_file()).ok()?.trim().parse().ok()
    }

    /// Remembers our id for a successor.
    pub(crate) fn set_session(&self, id: &ExecutorId) -> io::Result<()> {
        let partial = self.path.join("session.partial");
        fs::write(&partial, id.as_str())?;
        fs::rename(partial, self.session_file())
    }

    fn session_file(&self) -> PathBuf {
        self.path.join("session")
    }
}
