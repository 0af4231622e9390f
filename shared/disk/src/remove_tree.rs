//! Removes folders of any depth.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use nix::{
    fcntl::{AT_FDCWD, OFlag, openat, renameat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};

use crate::confined::{Confined, seen};

/// Prefix of the names of folders that are being removed: what a process leaves that dies meanwhile.
pub const REMOVING: &str = ".removing-";

/// Removes a folder with everything in it; links in it are not followed. `std::fs::remove_dir_all` needs stack for each
/// level, so that a build could end its worker by the depth of a folder. Here each folder first moves to one that is
/// beside `path` and has no other levels.
///
/// Fails if an entry cannot be removed; the others may be removed or not.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let flat = room_for_folder_beside(path)?;
    let removed = Confined::at(&flat).and_then(|opened| {
        let mut flattening = Flattening { flat: opened, left: Vec::new(), moved: 0 };
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let above =
            openat(AT_FDCWD, above, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        flattening.take(&above, name).map(|()| flattening)
    });
    match removed {
        Ok(flattening) => flattening.remove()?,
        Err(error) => {
            fs::remove_dir(&flat)?;
            return Err(error);
        }
    }
    fs::remove_dir(&flat)
}

/// A removal. All by descriptors: a process may replace a folder by a link meanwhile, which is not followed.
struct Flattening {
    /// The folder that the others move to.
    flat: Confined,
    /// Names in it that are not empty yet.
    left: Vec<String>,
    moved: u64,
}

impl Flattening {
    /// Moves a folder, and makes it accessible for its removal.
    fn take(&mut self, above: &impl AsFd, name: &OsStr) -> io::Result<()> {
        let folder = File::from(open_folder(above, Path::new(name))?);
        let permissions = folder.metadata()?.permissions();
        if permissions.mode() & 0o700 != 0o700 {
            fs::set_permissions(seen(&folder), fs::Permissions::from_mode(0o700))?;
        }
        let to = self.moved.to_string();
        self.moved += 1;
        renameat(above, name, &self.flat, to.as_str())?;
        self.left.push(to);
        Ok(())
    }

    fn remove(mut self) -> io::Result<()> {
        while let Some(name) = self.left.pop() {
            let folder = self.flat.folder(Path::new(&name))?;
            for entry in folder.entries()? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    self.take(&folder, &entry.file_name())?;
                } else {
                    unlinkat(&folder, entry.file_name().as_os_str(), UnlinkatFlags::NoRemoveDir)?;
                }
            }
            unlinkat(&self.flat, name.as_str(), UnlinkatFlags::RemoveDir)?;
        }
        Ok(())
    }
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

    #[test]
    fn s10_a_folder_that_becomes_a_link_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let [flat, tree, outside] = ["flat", "tree", "outside"].map(|name| place.path().join(name));
        for folder in [&flat, &tree, &outside] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("kept"), "").unwrap();
        }
        let above = open_folder(AT_FDCWD, place.path()).unwrap();
        let opened = Confined::at(&flat).unwrap();
        let mut flattening = Flattening { flat: opened, left: Vec::new(), moved: 0 };
        symlink(&outside, place.path().join("link")).unwrap();
        assert!(flattening.take(&above, "link".as_ref()).is_err());
        flattening.take(&above, "tree".as_ref()).unwrap();
        let moved = flat.join(&flattening.left[0]);
        fs::rename(&moved, flat.join("away")).unwrap();
        symlink(&outside, &moved).unwrap();
        assert!(flattening.remove().is_err());
        assert!(outside.join("kept").exists() && flat.join("away/kept").exists());
    }
}
