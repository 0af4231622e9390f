//! What a sync needs from a source.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use disk::Place;

use super::{
    bounds::Bounds,
    manifest::{Entry, Kind},
};

/// Size and rights of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// Size in bytes; means something for files only.
    pub(crate) size: u64,
    /// Permission bits and sticky: programs in workspaces give no rights.
    pub(crate) mode: u32,
    /// User id and group id.
    pub(crate) owner: (u32, u32),
}

/// The source of a sync. Paths are relative to it.
pub(crate) trait Source {
    /// All entries to bring to `target`.
    fn entries(&self, target: &Path, cancelled: &AtomicBool) -> io::Result<BTreeMap<PathBuf, Entry>>;

    /// The attributes of an entry; `None` if the source no longer has an entry of this kind there.
    fn attributes(&self, path: &Path, kind: Kind) -> Option<Attributes>;

    /// The target of a symlink.
    fn link_target(&self, path: &Path) -> io::Result<PathBuf>;

    /// Whether the file `target`, which has the right size, has the content of `path`.
    fn is_same(&self, path: &Path, target: &Place, cancelled: &AtomicBool) -> io::Result<bool>;

    /// Creates the file `target` with the content of `path`. It gets the current time, or with `keep_time` that of the
    /// source, if the source has times.
    fn fetch(&self, path: &Path, target: &Place, keep_time: bool, bounds: &Bounds<'_>) -> io::Result<()>;
}
