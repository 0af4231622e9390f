//! Removes folders of any depth.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Prefix of the names of folders that are being removed: what a process leaves that dies meanwhile.
pub const REMOVING: &str = ".removing-";

/// Removes a folder with everything in it; links in it are not followed. `std::fs::remove_dir_all` needs stack for each
/// level, so that a build could end its worker by the depth of a folder. Here each folder first moves to one that is
/// beside `path` and has no other levels.
///
/// Fails if an entry cannot be removed; the others may be removed or not.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let flat = new_folder_beside(path)?;
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
    let accessible = || fs::set_permissions(from, fs::Permissions::from_mode(0o700));
    let metadata = fs::symlink_metadata(from)?;
    if !metadata.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    if metadata.permissions().mode() & 0o700 != 0o700 {
        accessible()?;
    }
    fs::rename(from, to)
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
