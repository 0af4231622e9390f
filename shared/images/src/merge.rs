//! Combines the layers of an image in one folder, for machines that cannot mount them as overlay.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, chown},
    },
    path::Path,
};

use nix::unistd::geteuid;

use crate::{
    error::ImageError,
    place::{OPAQUE_FILE, WHITEOUT_PREFIX},
};

/// Adds a layer, unpacked with files as whiteouts, to what `root` has of lower layers. Files are hard links to those
/// of the layer. Nothing else may write to either folder. Returns the bytes that new folders and links take.
pub(crate) fn add(layer: &Path, root: &Path) -> Result<u64, ImageError> {
    let failed = |source| ImageError::file(format!("combining layers in {}", root.display()), source);
    add_folder(layer, root).map_err(failed)
}

/// Size that a folder counts as.
const BLOCK: u64 = 4096;

fn add_folder(from: &Path, to: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    if from.join(OPAQUE_FILE).exists() {
        for entry in fs::read_dir(to)? {
            remove(&entry?.path())?;
        }
    }
    let entries: Vec<fs::DirEntry> = fs::read_dir(from)?.collect::<Result<_, _>>()?;
    // What this layer hides is of lower layers only.
    for entry in &entries {
        let name = entry.file_name();
        if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT_PREFIX.as_bytes())
            && name != OPAQUE_FILE
        {
            remove(&to.join(OsStr::from_bytes(hidden)))?;
        }
    }
    for entry in entries {
        let (own, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_name().as_bytes().starts_with(WHITEOUT_PREFIX.as_bytes()) {
            continue;
        }
        let there = fs::symlink_metadata(&target).ok();
        if entry.file_type()?.is_dir() {
            if !there.is_some_and(|it| it.is_dir()) {
                remove(&target)?;
                fs::create_dir(&target)?;
                bytes += BLOCK;
            }
            bytes += add_folder(&own, &target)?;
            let about = entry.metadata()?;
            if geteuid().is_root() {
                chown(&target, Some(about.uid()), Some(about.gid()))?;
            }
            fs::set_permissions(&target, about.permissions())?;
        } else {
            remove(&target)?;
            fs::hard_link(&own, &target)?;
        }
    }
    Ok(bytes)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(it) if it.is_dir() => disk::remove_tree(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upper_layers_hide_and_replace_what_lower_ones_have() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (file, content) in [
            ("one/kept", "1"),
            ("one/removed", "1"),
            ("one/replaced", "1"),
            ("one/folder/hidden", "1"),
            ("one/becomes_file/x", "1"),
            ("one/becomes_folder", "1"),
            ("two/replaced", "2"),
            ("two/.wh.removed", ""),
            ("two/folder/.wh..wh..opq", ""),
            ("two/folder/new", "2"),
            ("two/becomes_file", "2"),
            ("two/becomes_folder/y", "2"),
        ] {
            fs::create_dir_all(path(file).parent().unwrap()).unwrap();
            fs::write(path(file), content).unwrap();
        }
        fs::create_dir(path("root")).unwrap();
        for layer in ["one", "two"] {
            add(&path(layer), &path("root")).unwrap();
        }
        let read = |name: &str| fs::read_to_string(path("root").join(name)).ok();
        let found = ["kept", "replaced", "folder/new", "becomes_file", "becomes_folder/y"].map(read);
        assert_eq!(found.map(Option::unwrap), ["1", "2", "2", "2", "2"]);
        let gone = ["removed", "folder/hidden", ".wh.removed", "folder/.wh..wh..opq"].map(read);
        assert_eq!(gone, [None, None, None, None]);
    }
}
