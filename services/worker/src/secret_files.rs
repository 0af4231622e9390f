//! Secrets of builds as files in memory, for the short time until the sandbox of a build has them.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, fchown},
    path::{Path, PathBuf},
};

use model::SecretName;
use nix::{
    fcntl::{Flock, FlockArg, OFlag},
    sys::statfs::{TMPFS_MAGIC, statfs},
    unistd::geteuid,
};
use secrets::Secret;
use shim::User;
use tracing::warn;

/// The file system in memory of Linux machines.
const MEMORY: &str = "/dev/shm";
/// Beginning of the names of the folders of workers there.
const PREFIX: &str = "forebay-secrets-";
/// Beginning of the name of a folder that is not locked yet.
const NEW: &str = "forebay-new-secrets-";

/// The folder in memory of a worker, locked as long as the worker lives.
pub(crate) struct SecretMemory {
    folder: PathBuf,
    _lock: Flock<File>,
}

/// The files of one build. They are removed when this is dropped.
pub(crate) struct StagedSecrets {
    folder: PathBuf,
    pub(crate) files: Vec<PathBuf>,
}

impl SecretMemory {
    /// Makes the folder, and removes those of workers that died.
    ///
    /// # Errors
    ///
    /// Fails if the machine has no file system in memory.
    pub(crate) fn create() -> io::Result<Self> {
        Self::create_in(Path::new(MEMORY))
    }

    fn create_in(place: &Path) -> io::Result<Self> {
        if statfs(place)?.filesystem_type() != TMPFS_MAGIC {
            let why = format!("{} is not a file system in memory (tmpfs)", place.display());
            return Err(io::Error::other(why));
        }
        clear_dead(place)?;
        let id = uuid::Uuid::new_v4().simple();
        let (new, folder) = (place.join(format!("{NEW}{id}")), place.join(format!("{PREFIX}{id}")));
        fs::DirBuilder::new().mode(0o700).create(&new)?;
        // Before it gets the name by which others look for the folders of dead workers.
        let lock = lock(&new)?;
        fs::rename(&new, &folder)?;
        Ok(Self { folder, _lock: lock })
    }

    /// Writes the secrets of a build that runs as `user`, or as the user of the worker.
    pub(crate) fn stage<'a>(
        &self,
        secrets: impl IntoIterator<Item = (&'a SecretName, &'a Secret)>,
        user: Option<User>,
    ) -> io::Result<StagedSecrets> {
        let folder = self.folder.join(uuid::Uuid::new_v4().simple().to_string());
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let mut staged = StagedSecrets { folder, files: Vec::new() };
        for (name, secret) in secrets {
            let path = staged.folder.join(name.as_str());
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o400).open(&path)?;
            file.write_all(secret.reveal())?;
            if let Some(user) = user {
                fchown(&file, Some(user.uid), Some(user.gid))?;
            }
            staged.files.push(path);
        }
        Ok(staged)
    }
}

impl Drop for SecretMemory {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

impl Drop for StagedSecrets {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        warn!(folder = %folder.display(), %error, "cannot remove secrets from memory: remove this folder");
    }
}

fn lock(folder: &Path) -> io::Result<Flock<File>> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(folder)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error.into())
}

/// Removes the folders of dead workers of this user.
fn clear_dead(place: &Path) -> io::Result<()> {
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|it| it.is_dir() && it.uid() == geteuid().as_raw());
        // A live worker holds the lock.
        if is_ours && let Ok(_lock) = lock(&entry.path()) {
            remove(&entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(place: &Path) -> usize {
        fs::read_dir(place).unwrap().count()
    }

    #[test]
    fn files_are_of_their_user_and_vanish_with_the_run_and_the_worker() {
        let place = tempfile::tempdir_in(MEMORY).unwrap();
        let memory = SecretMemory::create_in(place.path()).unwrap();
        let (name, secret) = ("token".parse().unwrap(), Secret::new(b"hunter22".to_vec()).unwrap());
        let user = geteuid().is_root().then_some(User { uid: 41_007, gid: 41_007 });
        let staged = memory.stage([(&name, &secret)], user).unwrap();
        let [file] = &staged.files[..] else { panic!("{:?}", staged.files) };
        let metadata = fs::metadata(file).unwrap();
        assert_eq!((fs::read(file).unwrap().as_slice(), metadata.mode() & 0o7777), (&b"hunter22"[..], 0o400));
        assert!(user.is_none_or(|user| metadata.uid() == user.uid));
        let folder = staged.folder.clone();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o7777, 0o700);
        drop(staged);
        assert!(!folder.exists());
        // Another worker leaves the folder of a live one alone, and removes that of a dead one.
        let dead = place.path().join(format!("{PREFIX}dead"));
        fs::create_dir_all(dead.join("x")).unwrap();
        let other = SecretMemory::create_in(place.path()).unwrap();
        assert_eq!(left(place.path()), 2);
        drop((memory, other));
        assert_eq!(left(place.path()), 0);
    }

    #[test]
    fn a_disk_is_no_place_for_secrets() {
        let refused = SecretMemory::create_in(Path::new("/proc")).err().unwrap().to_string();
        assert!(refused.contains("tmpfs"), "{refused}");
    }
}
