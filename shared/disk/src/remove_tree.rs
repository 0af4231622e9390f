//! Removes folders of any depth.

use std::{
    ffi::OsString,
    fs, io,
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use nix::{
    fcntl::{AT_FDCWD, OFlag, openat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};

/// Prefix of the names of folders that are being removed: what a process leaves that dies meanwhile.
pub const REMOVING: &str = ".removing-";

/// Removes a folder with everything in it; links in it are not followed. `std::fs::remove_dir_all` needs stack for each
/// level, so that a build could end its worker by the depth of a folder. Here each folder first moves to one that is
/// beside `path` and has no other levels.
///
/// Fails if an entry cannot be removed; the others may be removed or not.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let flat = room_for_folder_beside(path)?;
    let mut left = Vec::new();
    let mut moved = 0_u64;
    let mut move_away = |folder: &Path, left: &mut Vec<PathBuf>| {
        let to = flat.join(moved.to_string());
        moved += 1;
        move_folder(folder, &to)?;
        left.push(to);
        io::Result::Ok(())
    };
    if let Err(error) = move_away(path, &mut left) {
        fs::remove_dir(&flat)?;
        return Err(error);
    }
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                move_away(&entry.path(), &mut left)?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        fs::remove_dir(&folder)?;
    }
    fs::remove_dir(&flat)
}

/// Moves a folder, and makes it accessible for its removal.
fn move_folder(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(from)?;
    if !metadata.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    if metadata.permissions().mode() & 0o700 != 0o700 {
        // Not by path, which may lead elsewhere by now.
        let folder = open_folder(AT_FDCWD, from)?;
        fs::set_permissions(seen(&folder), fs::Permissions::from_mode(0o700))?;
    }
    fs::rename(from, to)
}

/// Makes a folder beside `path`. On a disk without a free inode, entries of `path` make room for it: other processes may take
/// the room of the first ones.
fn room_for_folder_beside(path: &Path) -> io::Result<PathBuf> {
    loop {
        match new_folder_beside(path) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull && path.is_dir() => remove_one(path)?,
            made => return made,
        }
    }
}

/// Removes one entry that is no folder, or the deepest folder on the way to it. Fails if `path` itself is all there is. By
/// descriptors: a process may replace a folder by a link meanwhile, which is not followed.
fn remove_one(path: &Path) -> io::Result<()> {
    let mut folder = open_folder(AT_FDCWD, path)?;
    let mut above: Option<(OwnedFd, OsString)> = None;
    loop {
        let mut below = None;
        for entry in fs::read_dir(seen(&folder))? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                return Ok(unlinkat(&folder, entry.file_name().as_os_str(), UnlinkatFlags::NoRemoveDir)?);
            }
            below = Some(entry.file_name());
        }
        match (below, above) {
            (Some(name), _) => {
                let deeper = open_folder(&folder, Path::new(&name))?;
                above = Some((std::mem::replace(&mut folder, deeper), name));
            }
            (None, Some((above, name))) => {
                return Ok(unlinkat(&above, name.as_os_str(), UnlinkatFlags::RemoveDir)?);
            }
            (None, None) => return Err(io::ErrorKind::StorageFull.into()),
        }
    }
}

fn open_folder(at: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(openat(at, path, flags, Mode::empty())?)
}

/// The path by which this process sees what the descriptor refers to.
fn seen(folder: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", folder.as_raw_fd())
}

fn new_folder_beside(path: &Path) -> io::Result<PathBuf> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let flat = path.with_file_name(format!("{REMOVING}{}-{number}", std::process::id()));
        match fs::create_dir(&flat) {
            // Left by a process that had the same id.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| flat),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::{
        fcntl::{OFlag, open},
        sys::stat::{Mode, mkdirat},
    };

    use super::*;

    #[test]
    fn a_folder_of_any_depth_is_removed_and_links_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("tree");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "x").unwrap();
        fs::write(place.path().join("kept"), "x").unwrap();
        symlink(place.path().join("kept"), root.join("a/link")).unwrap();
        symlink(place.path(), root.join("folder-link")).unwrap();
        fs::set_permissions(root.join("a/b"), fs::Permissions::from_mode(0o500)).unwrap();
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY;
        let mut at = open(&root, flags, Mode::empty()).unwrap();
        for _ in 0..30_000 {
            mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
            at = nix::fcntl::openat(&at, "d", flags, Mode::empty()).unwrap();
        }
        remove_tree(&root).unwrap();
        let left: Vec<_> = fs::read_dir(place.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(left, ["kept"]);
    }

    /// A file system in memory with this number of inodes; `None` where nothing can be mounted.
    struct Mounted(tempfile::TempDir);

    impl Mounted {
        fn new(inodes: u32) -> Option<Self> {
            let folder = tempfile::tempdir().unwrap();
            let options = format!("size=4M,nr_inodes={inodes}");
            let mut mount = std::process::Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path());
            mount.output().is_ok_and(|output| output.status.success()).then(|| Self(folder))
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(self.0.path()).status();
        }
    }

    #[test]
    fn a_folder_is_removed_although_the_disk_has_no_free_inode() {
        let Some(disk) = Mounted::new(50) else { return };
        for (name, of_folders) in [("files", false), ("folders", true)] {
            let root = disk.0.path().join(name);
            fs::create_dir_all(root.join("deep")).unwrap();
            let mut number = 0;
            loop {
                let path = root.join("deep").join(number.to_string());
                let made = if of_folders { fs::create_dir(&path) } else { fs::write(&path, "") };
                if made.is_err() {
                    break;
                }
                number += 1;
            }
            assert!(number > 10 && fs::create_dir(disk.0.path().join("more")).is_err());
            remove_tree(&root).unwrap();
            assert_eq!(fs::read_dir(disk.0.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn what_is_no_folder_is_an_error_and_stays() {
        let place = tempfile::tempdir().unwrap();
        let link = place.path().join("link");
        symlink(place.path(), &link).unwrap();
        assert_eq!(remove_tree(&link).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(remove_tree(&place.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
