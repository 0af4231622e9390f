//! Removes traces of a command in a sandbox that the next command will use too.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use invariant::Present as _;
use nix::sys::statvfs::statvfs;

/// Whether the text of a file shows no objects.
type IsClean = fn(&str) -> bool;

/// Files that list the objects of the namespaces, and how to read them. Files of features that the kernel
/// lacks do not exist.
const OBJECT_LISTS: [(&str, IsClean); 5] = [
    ("/proc/sysvipc/shm", is_header),
    ("/proc/sysvipc/sem", is_header),
    ("/proc/sysvipc/msg", is_header),
    ("/proc/net/sockstat", has_no_sockets),
    ("/proc/net/sockstat6", has_no_sockets),
];

/// Checks and empties the private folders and namespaces of one shim.
#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    folders: Vec<PathBuf>,
    lists: Vec<(File, IsClean)>,
}

/// Usage of the private folders, each of which is a file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Private {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
    /// Device numbers of the file systems.
    pub(crate) devices: Vec<u64>,
}

impl Cleaner {
    /// Covers these folders and, if there are any, the namespaces of this process; not the network namespace if it is
    /// that of the machine.
    pub(crate) fn new(folders: Vec<PathBuf>, shares_network: bool) -> Self {
        let lists = if folders.is_empty() { &[][..] } else { &OBJECT_LISTS };
        let is_own = |path: &str| !shares_network || !path.starts_with("/proc/net/");
        let open = |(path, is_clean): &(&str, IsClean)| Some((File::open(path).ok()?, *is_clean));
        let lists = lists.iter().filter(|(path, _)| is_own(path)).filter_map(open).collect();
        Self { folders, lists }
    }

    /// Usage of the folders, as their file systems count it.
    pub(crate) fn used(&self) -> Private {
        let mut used = Private::default();
        for folder in &self.folders {
            let (Ok(system), Ok(own)) = (statvfs(folder), fs::metadata(folder)) else { continue };
            used.bytes += system.blocks().saturating_sub(system.blocks_free()) * system.fragment_size();
            // One of the files is the folder itself.
            used.files += system.files().saturating_sub(system.files_free()).saturating_sub(1);
            used.devices.push(own.dev());
        }
        used
    }

    /// Empties the folders, when no other process is alive; returns whether the folders and namespaces are clean.
    pub(crate) fn clean(&self) -> bool {
        let emptied = |folder: &PathBuf| empty(folder, fs::metadata(folder)?.dev());
        self.folders.iter().all(|folder| emptied(folder).is_ok())
            && self.lists.iter().all(|(file, is_clean)| is_list_clean(file, *is_clean).unwrap_or(false))
    }
}

/// Empties a folder of this device; returns whether another file system is mounted below it. What is mounted there, such
/// as a workspace below `/tmp`, is no trace and stays.
fn empty(folder: &Path, device: u64) -> io::Result<bool> {
    let mut has_mounts = false;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, metadata) = (entry.path(), entry.metadata()?);
        if metadata.dev() != device {
            has_mounts = true;
        } else if !metadata.is_dir() {
            fs::remove_file(path)?;
        } else if empty(&path, device)? {
            has_mounts = true;
        } else {
            fs::remove_dir(path)?;
        }
    }
    Ok(has_mounts)
}

fn is_list_clean(file: &File, is_clean: IsClean) -> io::Result<bool> {
    let mut text = [0; 1024];
    let length = file.read_at(&mut text, 0)?;
    let text = text.get(..length).present("more bytes were read than the buffer holds");
    Ok(std::str::from_utf8(text).is_ok_and(is_clean))
}

/// Whether there is only a line of column names.
fn is_header(text: &str) -> bool {
    text.lines().count() <= 1
}

/// Parses `TCP: inuse 0 orphan 0 tw 0 ...`: a closed connection may hold its port for a minute. Counters of the whole
/// machine (`sockets: used`, `orphan`, `mem`) are ignored.
fn has_no_sockets(text: &str) -> bool {
    text.lines().all(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        while let (Some(name), Some(count)) = (words.next(), words.next()) {
            if matches!(name, "inuse" | "tw") && count != "0" {
                return false;
            }
        }
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_read() {
        assert!(is_header("       key      shmid perms\n"));
        assert!(!is_header("       key      shmid perms\n 0 1 600\n"));
        let clean = "sockets: used 3\nTCP: inuse 0 orphan 4 tw 0 alloc 1 mem 2\nUDP: inuse 0 mem 5\n";
        assert!(has_no_sockets(clean));
        assert!(!has_no_sockets(&clean.replace("tw 0", "tw 2")));
        assert!(!has_no_sockets("TCP6: inuse 1\n"));
    }

    #[test]
    fn folders_are_emptied() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/c"), "x").unwrap();
        std::os::unix::fs::symlink("/", folder.path().join("root")).unwrap();
        let device = fs::metadata(folder.path()).unwrap().dev();
        assert!(!empty(folder.path(), device).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(!Cleaner::new(vec!["/no/such/folder".into()], false).clean());
        assert!(Cleaner::default().clean());
    }
}
