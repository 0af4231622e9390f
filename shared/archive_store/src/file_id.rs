//! Which file is at a path: SQLite goes on writing to a file that was removed.

use std::{os::unix::fs::MetadataExt as _, path::Path};

/// Device and inode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The file at `path`, if there is one.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self { device: found.dev(), inode: found.ino() })
    }
}
