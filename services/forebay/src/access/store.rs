//! The file of the description: read, locked for a change, and replaced as a whole.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use access::Access;
use command_line::failure::{Failure, USAGE};

use crate::replaced_file;

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
        Ok(Locked { path: self.0.clone(), _lock: replaced_file::lock(&self.0)? })
    }
}

impl Locked {
    /// Reads the description, if it exists.
    pub(super) fn read(&self) -> Result<Option<Access>, Failure> {
        read(&self.path)
    }

    /// Replaces the description as a whole.
    pub(super) fn write(&self, access: &Access) -> Result<(), Failure> {
        replaced_file::replace(&self.path, &access.to_toml())
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
