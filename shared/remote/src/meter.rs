//! How far a transfer is.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a transfer is to move, and what of it has moved. Who shows it looks at it now and then.
#[derive(Debug, Default)]
pub struct Meter {
    blobs: AtomicU64,
    bytes: AtomicU64,
    blobs_expected: AtomicU64,
    bytes_expected: AtomicU64,
}

/// A moment of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Blobs that have moved.
    pub blobs: u64,
    /// Bytes that have moved.
    pub bytes: u64,
    /// Blobs that are to move, as far as it is known.
    pub blobs_expected: u64,
    /// Bytes that are to move, as far as it is known.
    pub bytes_expected: u64,
}

impl Meter {
    /// How far it is.
    pub fn read(&self) -> Reading {
        Reading {
            blobs: self.blobs.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            blobs_expected: self.blobs_expected.load(Ordering::Relaxed),
            bytes_expected: self.bytes_expected.load(Ordering::Relaxed),
        }
    }

    /// So many more are to move.
    pub(crate) fn expect(&self, blobs: u64, bytes: u64) {
        self.blobs_expected.fetch_add(blobs, Ordering::Relaxed);
        self.bytes_expected.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many more have moved.
    pub(crate) fn moved(&self, blobs: u64, bytes: u64) {
        self.blobs.fetch_add(blobs, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
