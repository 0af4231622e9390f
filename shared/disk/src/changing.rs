//! Values that are read from files, and again when these change.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

/// Maximum time for which a change is not noticed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A value that is read from files, and again when one of them has changed. Files are looked at when the value is
/// used, at most once a second.
#[derive(Debug)]
pub struct Changing<T> {
    paths: Vec<PathBuf>,
    read: Mutex<Read<T>>,
}

#[derive(Debug)]
struct Read<T> {
    value: T,
    stamps: Vec<Option<Stamp>>,
    looked_at: Instant,
}

/// Time of change, size and inode of a file: together they change with its content.
type Stamp = (SystemTime, u64, u64);

impl<T: Clone> Changing<T> {
    /// Reads the value for the first time.
    ///
    /// # Errors
    ///
    /// Fails if `read` does.
    pub fn new<E>(paths: Vec<PathBuf>, read: impl FnOnce() -> Result<T, E>) -> Result<Self, E> {
        // Before the content, so that a change in between is noticed.
        let stamps = stamps(&paths);
        let read = Read { value: read()?, stamps, looked_at: Instant::now() };
        Ok(Self { paths, read: Mutex::new(read) })
    }

    /// The value now. If a file has changed, `read` makes it from the earlier one; if `read` returns none, the earlier one stays
    /// until the next change.
    pub fn current(&self, read: impl FnOnce(&T) -> Option<T>) -> T {
        // A panic of `read` leaves the earlier value.
        let mut last = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if last.looked_at.elapsed() < LOOK_EVERY {
            return last.value.clone();
        }
        last.looked_at = Instant::now();
        let stamps = stamps(&self.paths);
        if stamps != last.stamps {
            last.stamps = stamps;
            if let Some(value) = read(&last.value) {
                last.value = value;
            }
        }
        last.value.clone()
    }

    /// Lets the next use look at the files, for tests.
    #[doc(hidden)]
    pub fn look_now(&self) {
        let mut last = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        last.looked_at = last.looked_at.checked_sub(LOOK_EVERY).unwrap_or(last.looked_at);
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |path: &PathBuf| {
        let found = fs::metadata(path).ok()?;
        Some((found.modified().ok()?, found.len(), found.ino()))
    };
    paths.iter().map(stamp).collect()
}

/// The size of a regular file in bytes. Reading anything else, such as a pipe, could block.
///
/// # Errors
///
/// Fails if there is no such file, or if it is not regular.
pub fn regular_bytes(path: &Path) -> io::Result<u64> {
    let found = fs::metadata(path)?;
    if found.is_file() { Ok(found.len()) } else { Err(io::Error::other("it is not a regular file")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_again_when_its_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        fs::write(&path, "one").unwrap();
        let read = || fs::read_to_string(&path);
        let value = Changing::new(vec![path.clone()], read).unwrap();
        fs::write(&path, "other").unwrap();
        assert_eq!(value.current(|_| read().ok()), "one", "files are looked at once a second");
        value.look_now();
        assert_eq!(value.current(|_| read().ok()), "other");
        value.look_now();
        assert_eq!(value.current(|_| panic!("it has not changed")), "other");
        fs::remove_file(&path).unwrap();
        value.look_now();
        assert_eq!(value.current(|_| read().ok()), "other");
    }

    #[test]
    fn only_regular_files_have_a_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert_eq!(regular_bytes(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&path, "four").unwrap();
        assert_eq!(regular_bytes(&path).unwrap(), 4);
        assert!(regular_bytes(folder.path()).is_err());
    }
}
