//! Counters of a store.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CasStats {
    /// Blobs that were stored and not there before.
    pub blobs_written: u64,
    /// Bytes of the blobs that were stored.
    pub bytes_written: u64,
    /// Whole reads answered from memory.
    pub memory_hits: u64,
    /// Whole reads of small blobs that were not in memory.
    pub memory_misses: u64,
    /// Existence checks answered from memory.
    pub known_hits: u64,
    /// Existence checks that accessed the disk.
    pub known_misses: u64,
    /// Action results found complete.
    pub action_hits: u64,
    /// Action results not found.
    pub action_misses: u64,
    /// Action results found but not served, because a blob that they name is gone.
    pub action_incomplete: u64,
    /// Files removed because they were damaged.
    pub damaged: u64,
    /// Blobs fetched from the backing.
    pub backing_reads: u64,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
