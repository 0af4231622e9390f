//! Disk usage of open files without a name.

use std::{
    collections::HashSet,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

/// What the kernel appends to the path of an open file that was removed.
const REMOVED: &[u8] = b" (deleted)";

/// Bytes on disk of removed files of each folder that processes still have open. Processes that this one may not
/// inspect count as having none.
pub fn unlinked_bytes(folders: &[PathBuf]) -> Vec<u64> {
    // The kernel shows paths without symbolic links.
    let folders: Vec<PathBuf> =
        folders.iter().map(|folder| folder.canonicalize().unwrap_or_else(|_| folder.clone())).collect();
    let (mut bytes, mut seen) = (vec![0_u64; folders.len()], HashSet::new());
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        for open in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let Some(index) = removed_from(&open.path(), &folders) else { continue };
            // Follows the link to the file itself, which has no name.
            let Ok(meta) = fs::metadata(open.path()) else { continue };
            if seen.insert((meta.dev(), meta.ino()))
                && let Some(bytes) = bytes.get_mut(index)
            {
                *bytes = bytes.saturating_add(meta.blocks().saturating_mul(512));
            }
        }
    }
    bytes
}

/// Index of the folder from which the open file behind `link` was removed.
fn removed_from(link: &Path, folders: &[PathBuf]) -> Option<usize> {
    let target = fs::read_link(link).ok()?;
    if !target.as_os_str().as_bytes().ends_with(REMOVED) {
        return None;
    }
    folders.iter().position(|folder| target.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn removed_files_count_while_they_are_open() {
        let folder = tempfile::tempdir().unwrap();
        let folders: Vec<PathBuf> = ["0", "1"].iter().map(|name| folder.path().join(name)).collect();
        for folder in &folders {
            fs::create_dir(folder).unwrap();
        }
        let path = folders[1].join("file");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(&vec![1; 300_000]).unwrap();
        let also_open = file.try_clone().unwrap();
        assert_eq!(unlinked_bytes(&folders), [0, 0], "it has a name");
        fs::remove_file(&path).unwrap();
        let bytes = unlinked_bytes(&folders);
        assert!(bytes[0] == 0 && (300_000..600_000).contains(&bytes[1]), "{bytes:?}");
        drop((file, also_open));
        assert_eq!(unlinked_bytes(&folders), [0, 0]);
    }
}
