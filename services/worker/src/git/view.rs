//! The `.git` of a build in a warm workspace: its own configuration, references and index, made again each time, and
//! the objects of the worker's repository, which git reads there and never writes to.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::CONFIG;

/// Files copied from the worker's repository. They keep their times: a build may compare with that of `HEAD`.
const SAME: [&str; 5] = ["HEAD", "index", "packed-refs", "shallow", "FETCH_HEAD"];

/// Creates the `.git` in `work`, replacing the existing one.
pub(super) fn make(git: &Path, work: &Path) -> io::Result<()> {
    let view = work.join(".git");
    remove(&view)?;
    // Built elsewhere and then renamed, so that it is either complete or missing.
    let new = git.with_extension("view");
    remove(&new)?;
    for folder in ["objects/info", "objects/pack", "refs/heads", "refs/tags"] {
        fs::create_dir_all(new.join(folder))?;
    }
    fs::write(new.join("config"), CONFIG)?;
    let mut objects = git.join("objects").into_os_string().into_encoded_bytes();
    objects.push(b'\n');
    fs::write(new.join("objects/info/alternates"), objects)?;
    for name in SAME {
        copy(&git.join(name), &new.join(name))?;
    }
    copy_references(&git.join("refs"), &new.join("refs"))?;
    fs::rename(&new, &view)
}

/// Removes a file or folder; a link is removed, not its target.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(meta) if meta.is_dir() => disk::remove_tree(path),
        Ok(_) => fs::remove_file(path),
    }
}

/// Copies a file with its modification time, if it exists.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    match fs::copy(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        copied => copied?,
    };
    let modified = fs::metadata(from)?.modified()?;
    fs::File::options().write(true).open(to)?.set_modified(modified)
}

fn copy_references(from: &Path, to: &Path) -> io::Result<()> {
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        fs::create_dir_all(to.join(&folder))?;
        for entry in fs::read_dir(from.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                copy(&from.join(&path), &to.join(&path))?;
            }
        }
    }
    Ok(())
}
