//! The executor's folder: held by a lock, so that a successor knows that the one before is dead.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use model::{ExecutorHome, ExecutorId};
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

    /// The folder itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where input roots are made.
    pub(crate) fn roots(&self) -> PathBuf {
        self.path.join("roots")
    }

    /// Where a slot keeps what its command writes to stdout and stderr.
    pub(crate) fn slot(&self, number: u16) -> PathBuf {
        self.path.join("slots").join(number.to_string())
    }

    /// Its name, made once: who has the folder next finds warm what is warm now.
    pub(crate) fn home(&self) -> io::Result<ExecutorHome> {
        let file = self.path.join("home");
        if let Some(home) = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok()) {
            return Ok(home);
        }
        let text = uuid::Uuid::new_v4().simple().to_string();
        let home = text.parse().map_err(io::Error::other)?;
        let partial = self.path.join("home.partial");
        fs::write(&partial, text)?;
        fs::rename(partial, file)?;
        Ok(home)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_folder_next_has_its_name() {
        let root = tempfile::tempdir().unwrap();
        let first = ExecutorFolder::hold(root.path()).unwrap();
        let home = first.home().unwrap();
        assert_eq!(first.home().unwrap(), home);
        // Another beside it has another.
        let second = ExecutorFolder::hold(root.path()).unwrap();
        assert_ne!(second.home().unwrap(), home);
        drop(first);
        assert_eq!(ExecutorFolder::hold(root.path()).unwrap().home().unwrap(), home);
    }
}
