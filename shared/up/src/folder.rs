//! The data folder: its layout, and the lock that allows only one `forebay up` at a time.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, Write as _},
    path::{Path, PathBuf},
};

use model::FARM_DATA_MARK;
use nix::fcntl::{Flock, FlockArg};

use crate::error::UpError;

/// A data folder that this process has locked.
#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    text: String,
    /// Released by the operating system at the end of the process, even after a crash.
    _lock: Flock<File>,
}

impl Folder {
    /// Creates the folder if it does not exist, and locks it.
    pub(crate) fn hold(data: &Path) -> Result<Self, UpError> {
        let unusable = |source| UpError::Folder { path: data.to_owned(), source };
        fs::create_dir_all(data).map_err(unusable)?;
        let root = data.canonicalize().map_err(unusable)?;
        let text = root.to_str().ok_or_else(|| UpError::NotText { path: root.clone() })?.to_owned();
        let lock = lock(&root)?;
        for name in ["nats", "redis", "logs", "run"] {
            let path = root.join(name);
            fs::create_dir_all(&path).map_err(|source| UpError::Folder { path, source })?;
        }
        let mark = root.join(FARM_DATA_MARK);
        fs::write(&mark, "This folder contains the data of a Forebay farm; builds do not copy it.\n")
            .map_err(|source| UpError::Folder { path: mark, source })?;
        Ok(Self { root, text, _lock: lock })
    }

    /// The absolute path of the folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The absolute path of the folder as text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Path of the log with a child's output.
    pub(crate) fn log(&self, child: &str) -> PathBuf {
        self.root.join("logs").join(format!("{child}.log"))
    }

    /// Path of the file in which a service reports that it is ready.
    pub(crate) fn listen_file(&self, child: &str) -> PathBuf {
        self.root.join("run").join(format!("{child}.json"))
    }
}

fn lock(root: &Path) -> Result<Flock<File>, UpError> {
    let path = root.join("lock");
    let unusable = |source| UpError::Folder { path: path.clone(), source };
    let file = disk::lock_file(&path).map_err(unusable)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut held) => {
            let pid = std::process::id().to_string();
            held.set_len(0)
                .and_then(|()| held.rewind())
                .and_then(|()| held.write_all(pid.as_bytes()))
                .map_err(unusable)?;
            Ok(held)
        }
        Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
            let mut holder = String::new();
            // A holder that cannot be read is reported as unknown.
            let _ = file.read_to_string(&mut holder);
            let holder = if holder.is_empty() { "unknown".to_owned() } else { holder };
            Err(UpError::Held { data: root.to_owned(), holder })
        }
        Err((_, errno)) => Err(unusable(errno.into())),
    }
}

/// Whether a `forebay up` has locked the folder.
pub(crate) fn is_held(root: &Path) -> bool {
    let Ok(file) = File::open(root.join("lock")) else { return false };
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, nix::errno::Errno::EWOULDBLOCK)))
}

/// Writes a file atomically: a reader sees either the old or the new content.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, content)?;
    fs::rename(&partial, path)
}

#[cfg(test)]
mod tests {
    use super::{FARM_DATA_MARK, Folder, UpError, is_held, write_whole};

    fn scratch(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("forebay-up-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn one_holder_at_a_time() {
        let data = scratch("holder");
        let first = Folder::hold(&data).unwrap();
        let error = Folder::hold(&data).unwrap_err();
        assert!(matches!(&error, UpError::Held { holder, .. } if *holder == std::process::id().to_string()));
        assert_eq!(error.exit_code(), 2);
        assert!(is_held(&data));
        assert!(data.join(FARM_DATA_MARK).is_file());
        drop(first);
        assert!(!is_held(&data));
        drop(Folder::hold(&data).unwrap());
        std::fs::remove_dir_all(&data).unwrap();
    }

    #[test]
    fn files_are_replaced_as_a_whole() {
        let data = scratch("whole");
        std::fs::create_dir_all(&data).unwrap();
        let path = data.join("file.json");
        write_whole(&path, b"long content").unwrap();
        write_whole(&path, b"short").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"short");
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 1);
        std::fs::remove_dir_all(&data).unwrap();
    }
}
