//! What this process knows to be there, and since when.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use model::BlobDigest;
use quick_cache::sync::Cache;

/// Milliseconds since the store was opened.
pub(crate) type Moment = u64;

/// When somebody last relied on a blob, and where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) at: Moment,
    /// It was in the local tier (and not only in the object store behind it).
    pub(crate) local: bool,
    /// Its executable twin was there too.
    pub(crate) twin: bool,
}

/// Remembers, within bounds, which blobs were touched recently.
///
/// A touch keeps a blob for 1.25 times what is promised. So within a part of that the answer "it is there, and stays" can be
/// repeated without another touch: an eighth of the usual time, and a quarter of the least.
#[derive(Debug)]
pub(crate) struct Known {
    seen: Cache<BlobDigest, Seen>,
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

    /// Whether what was touched at `at` need not be touched again yet.
    pub(crate) fn is_fresh(&self, at: Moment, now: Moment) -> bool {
        now.saturating_sub(at) < self.slice
    }

    /// What is known of a blob, if it was touched recently.
    pub(crate) fn fresh(&self, digest: &BlobDigest, now: Moment) -> Option<Seen> {
        let seen = self.seen.get(digest).filter(|seen| self.is_fresh(seen.at, now));
        let counter = if seen.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        seen
    }

    /// A blob was touched; `at` was read before.
    pub(crate) fn note(&self, digest: &BlobDigest, seen: Seen) {
        self.seen.insert(*digest, seen);
    }

    /// A blob was touched in the local tier, its twin was not looked at.
    pub(crate) fn note_local(&self, digest: &BlobDigest, at: Moment) {
        self.note(digest, Seen { at, local: true, twin: false });
    }

    pub(crate) fn forget(&self, digest: &BlobDigest) {
        self.seen.remove(digest);
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }
}
