//! Progress of work on many files.

use std::sync::atomic::AtomicU64;

/// Progress of work on many files, read while it runs.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Number of entries that are up to date.
    pub(crate) files: AtomicU64,
    /// Number of all entries, once they are counted.
    pub(crate) files_total: AtomicU64,
    /// Number of bytes copied so far.
    pub(crate) bytes: AtomicU64,
}
