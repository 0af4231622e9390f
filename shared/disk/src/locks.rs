//! Files that one process at a time locks.

use std::{
    fs::{File, OpenOptions, Permissions},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use nix::fcntl::{Flock, FlockArg};
use tokio::sync::oneshot;

/// Mode of a file that only its owner reads and writes.
const OWNER: u32 = 0o600;

/// Opens a file to be locked, and creates it if it does not exist. Other users cannot open it: with a lock they would stop the
/// processes that need it.
pub fn lock_file(path: &Path) -> io::Result<File> {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(OWNER).open(path)?;
    if file.metadata()?.mode() & 0o777 != OWNER {
        file.set_permissions(Permissions::from_mode(OWNER))?;
    }
    Ok(file)
}

/// Waits for the exclusive lock of a file, on a separate thread: a process that ends does not wait for it.
pub async fn wait_for_lock(path: &Path) -> io::Result<Flock<File>> {
    let file = lock_file(path)?;
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let locked = Flock::lock(file, FlockArg::LockExclusive);
        // Without a receiver the file is closed, which releases its lock.
        let _ = sender.send(locked.map_err(|(_, error)| error.into()));
    });
    receiver.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_cannot_open_a_file_that_is_locked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        for _ in 0..2 {
            lock_file(&path).unwrap();
            assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
            // As an earlier version left it.
            std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        }
    }
}
