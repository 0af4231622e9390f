//! Contents of small blobs in memory.

use bytes::Bytes;
use model::BlobDigest;
use quick_cache::{Weighter, sync::Cache};

use crate::{CasConfig, stats::Counter};

#[derive(Debug, Clone, Copy)]
struct BytesWeight;

impl Weighter<BlobDigest, Bytes> for BytesWeight {
    fn weight(&self, _: &BlobDigest, content: &Bytes) -> u64 {
        content.len() as u64 + 128
    }
}

/// The contents of small blobs that were read or written recently.
#[derive(Debug)]
pub(super) struct SmallBlobs {
    contents: Cache<BlobDigest, Bytes, BytesWeight>,
    blob_bytes_max: u64,
    hits: Counter,
    misses: Counter,
}

impl SmallBlobs {
    pub(super) fn new(config: &CasConfig) -> Self {
        let small = config.memory_blob_bytes_max.clamp(1, 1 << 20);
        let items = usize::try_from(config.memory_bytes / small.min(4096)).unwrap_or(0).max(64);
        Self {
            contents: Cache::with_weighter(items, config.memory_bytes, BytesWeight),
            blob_bytes_max: config.memory_blob_bytes_max,
            hits: Counter::default(),
            misses: Counter::default(),
        }
    }

    /// Whether a blob of this size is kept in memory.
    pub(super) fn is_small(&self, size: u64) -> bool {
        size <= self.blob_bytes_max
    }

    pub(super) fn get(&self, digest: &BlobDigest) -> Option<Bytes> {
        self.contents.get(digest)
    }

    /// Copies a small blob into memory: `content` may be a slice of a large message.
    pub(super) fn insert(&self, digest: &BlobDigest, content: &[u8]) {
        if self.is_small(digest.size) {
            self.contents.insert(*digest, Bytes::copy_from_slice(content));
        }
    }

    pub(super) fn remove(&self, digest: &BlobDigest) {
        self.contents.remove(digest);
    }

    /// Counts a whole read of a small blob.
    pub(super) fn count_read(&self, is_hit: bool) {
        let counter = if is_hit { &self.hits } else { &self.misses };
        counter.add(1);
    }

    /// Whole reads of small blobs that were answered here, and that were not.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.hits.get(), self.misses.get())
    }
}
