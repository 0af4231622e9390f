//! The blobs that this process knows to be present, and since when.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use model::BlobDigest;
use quick_cache::sync::Cache;

/// Milliseconds since the store was opened.
pub(crate) type Moment = u64;

/// When a caller last relied on a blob, and where the blob was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastUse {
    pub(crate) at: Moment,
    /// Whether it was in the local tier, and not only in the object store behind it.
    pub(crate) local: bool,
    /// Whether its executable twin was present too.
    pub(crate) twin: bool,
}

/// Remembers which blobs were touched recently, up to a maximum number.
///
/// A touch keeps a blob for 1.25 times the promised time. The store can therefore repeat the answer "present and
/// kept" for part of that time without another touch: for an eighth of `keep`, and for a quarter of `keep_min`.
#[derive(Debug)]
pub(crate) struct Known {
    seen: Cache<BlobDigest, LastUse>,
    start: Instant,
    slice: Moment,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Known {
    pub(crate) fn new(entries: usize, keep: Duration, floor: Duration) -> Self {
        let slice = u64::try_from((keep / 8).min(floor / 4).as_millis()).unwrap_or(u64::MAX);
        let (hits, misses) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { seen: Cache::new(entries.max(64)), start: Instant::now(), slice, hits, misses }
    }

    pub(crate) fn now(&self) -> Moment {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether a blob that was touched at `at` does not need another touch yet.
    pub(crate) fn is_fresh(&self, at: Moment, now: Moment) -> bool {
        now.saturating_sub(at) < self.slice
    }

    /// Returns the state of a blob, if it was touched recently.
    pub(crate) fn fresh(&self, digest: &BlobDigest, now: Moment) -> Option<LastUse> {
        let seen = self.seen.get(digest).filter(|seen| self.is_fresh(seen.at, now));
        let counter = if seen.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        seen
    }

    /// Records the touch of a blob; read `seen.at` from the clock before the touch.
    pub(crate) fn note(&self, digest: &BlobDigest, seen: LastUse) {
        self.seen.insert(*digest, seen);
    }

    /// Records the touch of a blob in the local tier; its twin was not checked.
    pub(crate) fn note_local(&self, digest: &BlobDigest, at: Moment) {
        self.note(digest, LastUse { at, local: true, twin: false });
    }

    pub(crate) fn forget(&self, digest: &BlobDigest) {
        self.seen.remove(digest);
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }
}
