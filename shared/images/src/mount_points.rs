//! What a sandbox needs in every image: folders to mount on, and files with the names of the machine.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use crate::error::ImageError;

/// Folders that file systems are mounted on, and the folder of input roots. `tmp` has the usual mode.
const FOLDERS: [&str; 8] = ["proc", "dev", "sys", "tmp", "run", "var", "etc", ".forebay"];
/// The folder with the input root of an action.
const INPUTS: &str = "forebay";
const FILES: [(&str, &str); 4] = [
    // It would load libraries of the image into the process of the slot, which is root until it has changed its user.
    ("etc/ld.so.preload", ""),
    ("etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.1.1\tforebay\n"),
    ("etc/hostname", "forebay\n"),
    ("etc/resolv.conf", ""),
];

/// The folder that is the topmost layer of every image.
pub(crate) fn folder(images: &Path) -> PathBuf {
    images.join("top")
}

/// The folder that overlays are mounted on, each in a mount namespace of its own.
pub(crate) fn mount(images: &Path) -> PathBuf {
    images.join("root")
}

/// Creates both of these folders.
pub(crate) fn make(images: &Path) -> Result<(), ImageError> {
    let create = || {
        fs::create_dir_all(mount(images))?;
        for closed in [images.to_owned(), mount(images)] {
            // The user of actions passes through.
            fs::set_permissions(closed, fs::Permissions::from_mode(0o711))?;
        }
        fs::create_dir_all(folder(images))?;
        fs::set_permissions(folder(images), fs::Permissions::from_mode(0o755))?;
        fill(&folder(images))
    };
    create().map_err(|source| ImageError::file(format!("preparing {}", images.display()), source))
}

/// Adds them to a folder with combined layers.
pub(crate) fn add(root: &Path) -> Result<(), ImageError> {
    fill(root).map_err(|source| ImageError::file(format!("preparing {}", root.display()), source))
}

fn fill(root: &Path) -> io::Result<()> {
    for name in FOLDERS.into_iter().chain([INPUTS]) {
        let path = root.join(name);
        if !fs::symlink_metadata(&path).is_ok_and(|it| it.is_dir()) {
            remove(&path)?;
            fs::create_dir(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    for (name, content) in FILES {
        // Never into a file that is a link to one of a layer.
        remove(&root.join(name))?;
        fs::write(root.join(name), content)?;
    }
    let temporary = root.join("var/tmp");
    if fs::symlink_metadata(&temporary).is_ok_and(|it| it.is_dir()) {
        disk::remove_tree(&temporary)?;
    } else {
        remove(&temporary)?;
    }
    symlink("/tmp", temporary)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
