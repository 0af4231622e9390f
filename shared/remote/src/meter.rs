//! Progress of a transfer.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the blobs and bytes that a transfer has to move and those that it has moved. A display polls it.
#[derive(Debug, Default)]
pub struct Meter {
    blobs: AtomicU64,
    bytes: AtomicU64,
    blobs_expected: AtomicU64,
    bytes_expected: AtomicU64,
}

/// A snapshot of the progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Blobs moved so far.
    pub blobs: u64,
    /// Bytes moved so far.
    pub bytes: u64,
    /// Blobs to move in total, as far as known.
    pub blobs_expected: u64,
    /// Bytes to move in total, as far as known.
    pub bytes_expected: u64,
}

impl Meter {
    /// Returns the current progress.
    pub fn read(&self) -> Reading {
        Reading {
            blobs: self.blobs.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            blobs_expected: self.blobs_expected.load(Ordering::Relaxed),
            bytes_expected: self.bytes_expected.load(Ordering::Relaxed),
        }
    }

    /// Adds blobs and bytes to move.
    pub(crate) fn expect(&self, blobs: u64, bytes: u64) {
        self.blobs_expected.fetch_add(blobs, Ordering::Relaxed);
        self.bytes_expected.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds blobs and bytes that have moved.
    pub fn moved(&self, blobs: u64, bytes: u64) {
        self.blobs.fetch_add(blobs, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
