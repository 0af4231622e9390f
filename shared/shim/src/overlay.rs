//! Mounts the layers of an image.

use std::{
    env,
    ffi::CString,
    fs::{self, File},
    io,
    os::{
        fd::AsFd as _,
        unix::{
            ffi::OsStrExt as _,
            fs::{lchown, symlink},
        },
    },
    path::Path,
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};

use crate::{
    id_maps::exchange,
    options::{Overlay, User},
    server::mount_mapped,
};

/// Options against features of overlays that read-only layers do not need, and that could lead out of them.
const OPTIONS: &str = "redirect_dir=off,metacopy=off";

/// Size of the file system in memory that has the short names of the folders, without what is written.
const NAMES_BYTES: u64 = 1 << 20;
/// The folder with what is written, and the one that the kernel prepares it in.
const UPPER: &str = "upper";
const WORK: &str = "work";

/// Longest path that the kernel accepts, in bytes.
const PATH_MAX: usize = 4096;

/// Mounts an overlay in a new mount namespace of this process, with which it vanishes.
pub(crate) fn mount_overlay(overlay: &Overlay) -> io::Result<()> {
    let failed = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot mount an image at {}: {error}", overlay.at.display()))
    };
    try_mount(overlay).map_err(failed)
}

fn try_mount(overlay: &Overlay) -> io::Result<()> {
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Slave: the machine must not see the mount, and what it unmounts must not stay mounted here.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
    if let Some(users) = overlay.exchanged
        // Older kernels and some file systems cannot do this.
        && let Ok(maps) = exchange(users)
    {
        match mount_layers(overlay, Some(&maps)) {
            Ok(()) => return Ok(()),
            // What was mounted until then goes with the file system below it.
            Err(_) => drop(umount2(&overlay.at, MntFlags::MNT_DETACH)),
        }
    }
    mount_layers(overlay, None)
}

/// Mounts the folders with the owners of their files as `maps` has them.
fn mount_layers(overlay: &Overlay, maps: Option<&File>) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    // The options have at most a page, so the folders get short names.
    let bytes = NAMES_BYTES.saturating_add(overlay.writable_bytes.unwrap_or(0));
    let options = format!("size={bytes},mode=755");
    mount(Some("tmpfs"), &overlay.at, Some("tmpfs"), flags, Some(options.as_str()))?;
    let mut names = Vec::with_capacity(overlay.lower.len());
    for (number, folder) in overlay.lower.iter().enumerate() {
        let name = number.to_string();
        // It would be an empty layer.
        fs::metadata(folder)?;
        let place = overlay.at.join(&name);
        if let Some(maps) = maps {
            fs::create_dir(&place)?;
            let [folder, place] = [folder, &place].map(|path| CString::new(path.as_os_str().as_bytes()));
            mount_mapped(&folder?, &place?, maps.as_fd())?;
        } else {
            symlink(folder, place)?;
        }
        names.push(name);
    }
    env::set_current_dir(&overlay.at)?;
    let lower = format!("lowerdir={},{OPTIONS}", names.join(":"));
    let (flags, options) = if overlay.writable_bytes.is_some() {
        for folder in [UPPER, WORK] {
            fs::create_dir(overlay.at.join(folder))?;
        }
        for folder in &overlay.folders {
            // Nothing else is there: no link can be followed.
            fs::create_dir_all(overlay.at.join(UPPER).join(folder.strip_prefix("/").unwrap_or(folder)))?;
        }
        (flags, format!("{lower},upperdir={UPPER},workdir={WORK}"))
    } else {
        (flags | MsFlags::MS_RDONLY, lower)
    };
    mount(Some("overlay"), &overlay.at, Some("overlay"), flags, Some(options.as_str()))?;
    if let Some(owner) = overlay.owner {
        give_folders(&overlay.at, owner)?;
    }
    env::set_current_dir("/")
}

/// Gives all folders to a user. No link is followed, and nothing else changes them meanwhile.
fn give_folders(root: &Path, owner: User) -> io::Result<()> {
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        lchown(&folder, Some(owner.uid), Some(owner.gid))?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let path = entry.path();
            // Deeper folders keep their owners: they have no path that the kernel takes.
            if entry.file_type()?.is_dir() && path.as_os_str().len() < PATH_MAX {
                left.push(path);
            }
        }
    }
    Ok(())
}
