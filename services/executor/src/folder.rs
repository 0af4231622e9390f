//! The directory of an executor: locked, so that a successor knows that its predecessor is dead.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
};

use disk::remove_tree;
use input_root::Owner;
use model::{ExecutorHome, ExecutorId};
use nix::fcntl::{Flock, FlockArg};

/// Maximum number of executors that share a data directory.
const FOLDERS_MAX: u32 = 1000;

/// A directory that no other executor uses while this value exists.
#[derive(Debug)]
pub(crate) struct ExecutorFolder {
    path: PathBuf,
    _lock: Flock<fs::File>,
}

impl ExecutorFolder {
    /// Locks the first free directory under `root`.
    pub(crate) fn hold(root: &Path, owner: Option<Owner>) -> io::Result<Self> {
        for number in 0..FOLDERS_MAX {
            let path = root.join(number.to_string());
            fs::create_dir_all(&path)?;
            // The user of actions makes some sandboxes and so enters it; other users of the machine do not.
            chown(&path, None, owner.map(|owner| owner.gid))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o710))?;
            let file = disk::lock_file(&path.join("lock"))?;
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
        Err(io::Error::other(format!("all {FOLDERS_MAX} executor directories are in use")))
    }

    /// Removes the files that a killed executor left.
    fn clear(&self) -> io::Result<()> {
        for name in ["roots", "slots", "services"] {
            let path = self.path.join(name);
            let removed = match fs::symlink_metadata(&path) {
                // Actions make folders of any depth, and some that their owner may not enter.
                Ok(it) if it.is_dir() => remove_tree(&path),
                Ok(_) => fs::remove_file(&path),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            };
            let named = |error: io::Error| {
                let message = format!("cannot empty {}: {error}; remove it by hand", path.display());
                io::Error::new(error.kind(), message)
            };
            removed.and_then(|()| fs::create_dir(&path)).map_err(named)?;
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory in which input roots are created.
    pub(crate) fn roots(&self) -> PathBuf {
        self.path.join("roots")
    }

    /// The directory for the stdout and stderr of a slot's command.
    pub(crate) fn slot(&self, number: u16) -> PathBuf {
        self.path.join("slots").join(number.to_string())
    }

    /// The directory for the files of services that several actions share.
    pub(crate) fn services(&self) -> PathBuf {
        self.path.join("services")
    }

    /// The name of the directory, created once. The next executor that uses the directory finds the same warm state.
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

    /// The id of the previous executor of this directory, or of this executor's last session.
    pub(crate) fn predecessor(&self) -> Option<ExecutorId> {
        fs::read_to_string(self.session_file()).ok()?.trim().parse().ok()
    }

    /// Stores the id of this session for a successor.
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
    fn whatever_a_killed_action_left_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let first = ExecutorFolder::hold(root.path(), None).unwrap();
        let slot = first.slot(0);
        let mut deep = slot.join("work");
        for level in 0..500 {
            deep.push(level.to_string());
        }
        fs::create_dir_all(&deep).unwrap();
        let closed = std::os::unix::fs::PermissionsExt::from_mode(0o500);
        fs::set_permissions(slot.join("work/0/1"), closed).unwrap();
        fs::remove_dir(first.roots()).unwrap();
        fs::write(first.roots(), "a file in the way").unwrap();
        drop(first);
        let next = ExecutorFolder::hold(root.path(), None).unwrap();
        assert!(next.roots().is_dir() && !next.slot(0).exists());
    }

    #[test]
    fn who_has_the_folder_next_has_its_name() {
        let root = tempfile::tempdir().unwrap();
        let first = ExecutorFolder::hold(root.path(), None).unwrap();
        let home = first.home().unwrap();
        assert_eq!(first.home().unwrap(), home);
        // A second executor gets another directory.
        let second = ExecutorFolder::hold(root.path(), None).unwrap();
        assert_ne!(second.home().unwrap(), home);
        drop(first);
        assert_eq!(ExecutorFolder::hold(root.path(), None).unwrap().home().unwrap(), home);
    }
}
