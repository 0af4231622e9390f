//! Files of text that commands change while others read them.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use command_line::failure::{FAILED, Failure};

/// Locks a file for a change, by a file beside it; waits for a change in progress. The lock ends with the result.
pub(crate) fn lock(path: &Path) -> Result<File, Failure> {
    let path = path.with_extension("lock");
    let lock = disk::lock_file(&path).and_then(|file| file.lock().map(|()| file));
    lock.map_err(|error| Failure::new(FAILED, format!("cannot lock {}", path.display()), &error))
}

/// Writes a file so that it is the old one or the new one, also after a power cut. A new file can be
/// read by all: it has no secrets.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    try_replace(path, text)
        .map_err(|error| Failure::new(FAILED, format!("cannot write {}", path.display()), &error))
}

fn try_replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    let permissions =
        fs::metadata(path).map_or_else(|_| Permissions::from_mode(0o644), |found| found.permissions());
    let mut draft = tempfile::NamedTempFile::new_in(folder)?;
    draft.as_file().set_permissions(permissions)?;
    draft.write_all(text.as_bytes())?;
    draft.as_file().sync_all()?;
    draft.persist(path)?;
    Ok(())
}
