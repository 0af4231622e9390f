//! Files of the machine that a sandboxed build could read only because its worker may.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{getegid, geteuid};

/// Access of other users: to read, and to enter a folder.
const READ: u32 = 0o004;
const READ_AND_ENTER: u32 = 0o005;

/// Files and folders below `folder` that belong to the user or group of this process and that other users cannot read, for
/// example host keys if it is root. Those in `except` are left out. What cannot be listed here cannot be read in a sandbox.
pub(crate) fn private(folder: &Path, except: &[PathBuf]) -> Vec<PathBuf> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_symlink() || except.contains(&path) {
                continue;
            }
            let needed = if metadata.is_dir() { READ_AND_ENTER } else { READ };
            let is_own = metadata.uid() == user || metadata.gid() == group;
            if is_own && metadata.mode() & needed != needed {
                found.push(path);
            } else if metadata.is_dir() {
                folders.push(path);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn own_files_that_others_cannot_read_are_found_and_listed_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("open/deep")).unwrap();
        fs::create_dir_all(path("closed")).unwrap();
        for (name, mode) in [
            ("open/deep/key", 0o600),
            ("open/group", 0o640),
            ("open/settings", 0o644),
            ("open/listed", 0o600),
            ("closed/settings", 0o644),
        ] {
            fs::write(path(name), "").unwrap();
            fs::set_permissions(path(name), PermissionsExt::from_mode(mode)).unwrap();
        }
        fs::set_permissions(path("closed"), PermissionsExt::from_mode(0o711)).unwrap();
        symlink(path("closed"), path("link")).unwrap();
        let mut found = private(folder.path(), &[path("open/listed")]);
        found.sort();
        assert_eq!(found, ["closed", "open/deep/key", "open/group"].map(path));
    }
}
