//! Private files, replaced as a whole.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

use crate::error::UpError;

/// Creates a folder that only its owner can read.
pub(super) fn create_folder(path: &Path) -> Result<(), UpError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| UpError::Folder { path: path.to_owned(), source })
}

/// The content of a file, if it exists.
pub(super) fn read(path: &Path) -> Result<Option<String>, UpError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(UpError::Secure { path: path.to_owned(), source: Box::new(error) }),
    }
}

/// The content of a file, which is made if it does not exist.
pub(super) fn keep(path: &Path, make: impl FnOnce() -> String) -> Result<String, UpError> {
    if let Some(text) = read(path)? {
        return Ok(text);
    }
    let text = make();
    replace(path, &text)?;
    Ok(text)
}

/// Writes a file that only its owner can read: complete or as before, also after a power cut.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), UpError> {
    let draft = path.with_extension("draft");
    let written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft);
    let written = written.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    });
    written.map_err(|source| UpError::Write { path: path.to_owned(), source })
}
