//! The file of the description: read, locked for a change, and replaced as a whole.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use access::Access;

use crate::failure::{FAILED, Failure, USAGE};

/// The file of a description.
pub(super) struct File(PathBuf);

/// A description that no other command changes meanwhile.
pub(super) struct Locked {
    path: PathBuf,
    _lock: fs::File,
}

impl File {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Reads the description from the file.
    pub(super) fn read(&self) -> Result<Access, Failure> {
        match read(&self.0)? {
            Some(access) => Ok(access),
            None => {
                Err(Failure::usage(format!("{} does not exist: run `forebay access init`", self.0.display())))
            }
        }
    }

    /// Locks the description for a change; waits for a change in progress.
    pub(super) fn lock(&self) -> Result<Locked, Failure> {
        let path = self.0.with_extension("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let lock = lock.and_then(|file| file.lock().map(|()| file));
        let lock =
            lock.map_err(|error| Failure::new(FAILED, format!("cannot lock {}", path.display()), &error))?;
        Ok(Locked { path: self.0.clone(), _lock: lock })
    }
}

impl Locked {
    /// Reads the description, if it exists.
    pub(super) fn read(&self) -> Result<Option<Access>, Failure> {
        read(&self.path)
    }

    /// Replaces the description as a whole.
    pub(super) fn write(&self, access: &Access) -> Result<(), Failure> {
        replace(&self.path, &access.to_toml())
    }
}

fn read(path: &Path) -> Result<Option<Access>, Failure> {
    let unreadable =
        |error: &dyn std::error::Error| Failure::new(USAGE, format!("cannot read {}", path.display()), error);
    match fs::read_to_string(path) {
        Ok(text) => Access::parse(&text).map(Some).map_err(|error| unreadable(&error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&error)),
    }
}

/// Writes a file so that it is the old one or the new one, also after a power cut.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    let written = tempfile::NamedTempFile::new_in(folder).and_then(|mut draft| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        draft.as_file().set_permissions(mode)?;
        draft.write_all(text.as_bytes())?;
        draft.as_file().sync_all()?;
        draft.persist(path).map(drop).map_err(|error| error.error)
    });
    written.map_err(|error| Failure::new(FAILED, format!("cannot write {}", path.display()), &error))
}
