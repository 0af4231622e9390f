//! Mounts the layers of an image.

use std::{env, fs, io, os::unix::fs::symlink};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

use crate::options::Overlay;

/// Options against features of overlays that read-only layers do not need, and that could lead out of them.
const OPTIONS: &str = "redirect_dir=off,metacopy=off";

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
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    // The options have at most a page, so the folders get short names.
    mount(Some("tmpfs"), &overlay.at, Some("tmpfs"), flags, Some("size=1m,mode=755"))?;
    let mut names = Vec::with_capacity(overlay.lower.len());
    for (number, folder) in overlay.lower.iter().enumerate() {
        let name = number.to_string();
        // It would be an empty layer.
        fs::metadata(folder)?;
        symlink(folder, overlay.at.join(&name))?;
        names.push(name);
    }
    env::set_current_dir(&overlay.at)?;
    let options = format!("lowerdir={},{OPTIONS}", names.join(":"));
    let flags = flags | MsFlags::MS_RDONLY;
    mount(Some("overlay"), &overlay.at, Some("overlay"), flags, Some(options.as_str()))?;
    env::set_current_dir("/")
}
