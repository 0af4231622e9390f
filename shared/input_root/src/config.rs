//! Configuration of input roots.

use std::{path::PathBuf, time::Duration};

use cas::Cas;
use reapi::directory::AbsoluteTargets;

/// The user that runs the actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// Configuration of input roots.
#[derive(Clone)]
pub struct InputRootsConfig {
    /// The store with the blobs.
    pub cas: Cas,
    /// Work folder, owned by this process; slots lie on the same file system, and so does the store
    /// if files are linked.
    pub root: PathBuf,
    /// The user that runs the actions, if that is another user: it becomes the owner of directories. Files are linked
    /// only if it is set, since the owner of a file could write to it.
    pub owner: Option<Owner>,
    /// Link files instead of copying them, where it is safe.
    pub link: bool,
    /// Maximum number of files, directories and symlinks that are kept of earlier actions.
    pub kept_entries_max: u64,
    /// Maximum bytes of kept files; files that are shared with the store count too.
    pub kept_bytes_max: u64,
    /// How long unused trees are kept. Limits how long evicted blobs of the store still occupy the disk.
    pub kept_idle: Duration,
    /// Number of empty directories that are created in advance while no action waits for them.
    pub stock: usize,
    /// Maximum number of files, directories and symlinks of an input root.
    pub entries_max: u64,
    /// Maximum number of files, directories and symlinks in the outputs of an action.
    pub output_entries_max: u64,
    pub absolute_targets: AbsoluteTargets,
    /// Maximum bytes of standard output, and of standard error, that are put into the result itself. 0: none.
    pub inline_bytes: u64,
}

impl InputRootsConfig {
    /// The defaults, for a store, a work folder and an owner.
    pub fn new(cas: Cas, root: impl Into<PathBuf>, owner: Option<Owner>) -> Self {
        Self {
            cas,
            root: root.into(),
            owner,
            link: true,
            kept_entries_max: 200_000,
            kept_bytes_max: 20 << 30,
            kept_idle: Duration::from_secs(600),
            stock: 64,
            entries_max: 2_000_000,
            output_entries_max: 1_000_000,
            absolute_targets: AbsoluteTargets::Refused,
            inline_bytes: 64 << 10,
        }
    }
}
