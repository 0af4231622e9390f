//! How much of an image was fetched.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the bytes of an image that were fetched from its registry.
#[derive(Debug, Default)]
pub struct PullProgress {
    expected: AtomicU64,
    fetched: AtomicU64,
}

impl PullProgress {
    /// Bytes of the layers that this machine did not have, and those of them that were fetched.
    pub fn read(&self) -> (u64, u64) {
        (self.expected.load(Ordering::Relaxed), self.fetched.load(Ordering::Relaxed))
    }

    pub(crate) fn announce(&self, bytes: u64) {
        self.expected.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.fetched.fetch_add(bytes, Ordering::Relaxed);
    }
}
