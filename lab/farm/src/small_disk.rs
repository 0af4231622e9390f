//! A small disk for a test to fill.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// A tmpfs that stays mounted until it is dropped.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
    // Removed after the disk in it is unmounted.
    folder: Option<TempDir>,
}

impl SmallDisk {
    /// Mounts a disk of this size in a new folder; `None` where nothing can be mounted.
    pub fn mount(megabytes: u32) -> Option<Self> {
        Self::mount_new(&format!("size={megabytes}M,mode=755"))
    }

    /// Mounts a disk that has room for so many files; `None` where nothing can be mounted.
    pub fn mount_for_files(megabytes: u32, inodes: u32) -> Option<Self> {
        Self::mount_new(&format!("size={megabytes}M,nr_inodes={inodes},mode=755"))
    }

    fn mount_new(options: &str) -> Option<Self> {
        let folder = tempfile::Builder::new().prefix("forebay-test-").tempdir().expect("a temporary folder");
        let mut disk = Self::mount_with(folder.path(), options)?;
        disk.folder = Some(folder);
        Some(disk)
    }

    /// Mounts a disk of this size at an empty folder; `None` where nothing can be mounted.
    pub fn mount_at(path: &Path, megabytes: u32) -> Option<Self> {
        Self::mount_with(path, &format!("size={megabytes}M,mode=755"))
    }

    fn mount_with(path: &Path, options: &str) -> Option<Self> {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self { path: path.to_owned(), folder: None });
        }
        eprintln!("skipped: a tmpfs cannot be mounted here");
        None
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills the disk until the returned file is removed.
    pub fn fill(&self) -> PathBuf {
        let path = self.path.join("fill");
        let mut file = fs::File::create(&path).expect("a file on the small disk");
        let piece = vec![1_u8; 1 << 16];
        while file.write_all(&piece).is_ok() {}
        while file.write_all(&[1]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: processes that still have a file open on it end soon.
        let unmounted = Command::new("umount").arg("-l").arg(&self.path).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} was not unmounted", self.path.display());
        }
    }
}
