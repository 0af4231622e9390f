//! Converts a whole folder to the tree of a build's context.

use std::{
    io,
    path::{Path, PathBuf},
};

use model::DigestFunction;
use reapi::directory::AbsoluteTargets;

use super::{
    LocalError,
    scan::{Folder, Scanned, finish, no_input},
    walk,
};

/// Reads a folder: all files, symlinks and folders that [`walk`] returns. Symlinks may have absolute targets; pipes,
/// sockets and devices are left out. This function blocks.
pub fn scan_context(
    folder: &Path,
    ignore_files: bool,
    function: DigestFunction,
) -> Result<Scanned, LocalError> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut root = Folder::default();
    // The folders from the root, exclusive, to the current entry.
    let mut open: Vec<(String, Folder)> = Vec::new();
    for entry in walk(folder, ignore_files, |_| false) {
        let entry = match entry {
            Ok(entry) => entry,
            // Entries that vanish during the scan are left out.
            Err(error) if error.depth() != Some(0) && is_missing(&error) => continue,
            Err(error) => return Err(unreadable(folder, error)),
        };
        let (depth, Some(kind)) = (entry.depth(), entry.file_type()) else { continue };
        if depth == 0 {
            continue;
        }
        close(&mut root, &mut open, depth - 1);
        let path = entry.into_path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()).map(str::to_owned) else {
            return Err(no_input(&path, "its name is not UTF-8"));
        };
        if kind.is_dir() {
            open.push((name, Folder::default()));
        } else if kind.is_file() || kind.is_symlink() {
            innermost(&mut root, &mut open).add((name, path, kind), AbsoluteTargets::Allowed, &mut found)?;
        }
    }
    close(&mut root, &mut open, 0);
    finish(root, found, function)
}

/// The error of the walk through `folder`, with the path at which it occurred.
fn unreadable(folder: &Path, error: ignore::Error) -> LocalError {
    let path = path_of(&error).unwrap_or(folder).to_owned();
    // The text of the error contains the path again, but its kind does not.
    let source = match error.io_error().map(io::Error::kind) {
        Some(kind) => io::Error::from(kind),
        None => io::Error::other(error),
    };
    LocalError::io("read folder", path)(source)
}

fn path_of(error: &ignore::Error) -> Option<&Path> {
    if let ignore::Error::WithPath { path, .. } = error { Some(path.as_path()) } else { None }
}

fn is_missing(error: &ignore::Error) -> bool {
    error.io_error().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Moves folders into their parents until only `depth` are open.
fn close(root: &mut Folder, open: &mut Vec<(String, Folder)>, depth: usize) {
    while open.len() > depth
        && let Some(folder) = open.pop()
    {
        innermost(root, open).dirs.push(folder);
    }
}

fn innermost<'a>(root: &'a mut Folder, open: &'a mut [(String, Folder)]) -> &'a mut Folder {
    match open.last_mut() {
        Some((_, folder)) => folder,
        None => root,
    }
}
