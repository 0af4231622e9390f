//! The store: state that all its calls share, and the most frequent calls.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use model::BlobDigest;
use parking_lot::RwLock;
use quick_cache::{Weighter, sync::Cache};
use tokio::sync::Semaphore;

use crate::{
    CasConfig, CasError,
    action_memo::ActionMemo,
    backing::{Backing, farm::Farm, objects::Objects},
    blocking::is_thread_dedicated,
    directory_memo::DirectoryMemo,
    disk::Disk,
    empty_blob::is_empty,
    known::{Known, LastUse, Moment},
    layout::Entry,
    output_tree_memo::TreeRefsMemo,
    refusal::{Refusal, Refusing},
};

/// Maximum number of concurrent calls to the disk; more would only slow each other down.
const BLOCKING_CALLS_MAX: usize = 64;
/// Number of digests looked up in one blocking task.
const LOOK_UPS: usize = 2048;

/// The content-addressable store and the action cache. Cheap to clone; all clones are one.
///
/// Guarantees: a blob that a call reports as present (`missing`, `contains`, `get_action`, `check_tree`, `split`) or
/// that was just stored is kept for at least [`CasConfig::keep`] from then on while there is space, and for
/// [`CasConfig::keep_min`] in any case. The modification time of its file is the last time a caller relied on it; the
/// [`Evictor`](crate::Evictor) does not touch files younger than 1.25 times that. Several processes may use one
/// folder with the same `keep`.
///
/// With an object store behind it (`backing`), a write counts as stored once the object store has it; reads fall back
/// to the object store and fill the local tier. [`Cas::sweep_objects`] deletes objects that were neither written nor
/// renewed within `retention`; a look-up renews older ones in time. A life-cycle rule of the bucket must be longer.
///
/// With a farm behind it (`grpc://`), the farm is authoritative: it answers which blobs are missing, receives each
/// write before the write counts as stored, and keeps the action results. Its `keep` must not be shorter than this
/// store's. The local tier holds copies.
///
/// All content is verified before it is stored. Whole reads ([`Cas::get`]) are verified when they come from
/// the disk, streams only by their length (their reader has the digest and the bytes); content from the
/// object store is verified when it fills the local tier. A file of the wrong length, such as a power cut
/// leaves, is removed at its next use.
#[derive(Clone)]
pub struct Cas {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for Cas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cas").field("root", &self.inner.config.root).finish_non_exhaustive()
    }
}

/// Receives reports of disk usage.
pub trait UsageSink: Send + Sync + 'static {
    /// Adds `bytes` of disk usage, in allocated blocks. Called from blocking threads, once for each batch
    /// of writes; must not block.
    fn used(&self, bytes: u64);
}

pub(crate) struct Inner {
    pub(crate) config: CasConfig,
    pub(crate) disk: Disk,
    pub(crate) known: Known,
    pub(crate) memory: Cache<BlobDigest, Bytes, BytesWeight>,
    pub(crate) backing: Option<Backing>,
    pub(crate) refusal: Arc<Refusing>,
    pub(crate) budget: Arc<Semaphore>,
    pub(crate) counters: Counters,
    pub(crate) actions: ActionMemo,
    pub(crate) directories: DirectoryMemo,
    pub(crate) trees: TreeRefsMemo,
    sink: RwLock<Option<Arc<dyn UsageSink>>>,
    blocking_calls: Arc<Semaphore>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct BytesWeight;

impl Weighter<BlobDigest, Bytes> for BytesWeight {
    fn weight(&self, _: &BlobDigest, content: &Bytes) -> u64 {
        content.len() as u64 + 128
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) blobs_written: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) memory_hits: AtomicU64,
    pub(crate) memory_misses: AtomicU64,
    pub(crate) action_hits: AtomicU64,
    pub(crate) action_misses: AtomicU64,
    pub(crate) action_incomplete: AtomicU64,
    pub(crate) backing_reads: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

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

impl Cas {
    /// Opens the store in its folder and creates missing subfolders.
    pub fn open(config: CasConfig) -> Result<Self, CasError> {
        let backing = config.backing.as_deref().map(|url| Backing::open(url, &config)).transpose()?;
        let copy_age_max = match &backing {
            Some(Backing::Objects(_)) => Some(config.retention / 2),
            Some(Backing::Remote(_)) | None => None,
        };
        let disk = Disk::open(&config.root, config.fsync, copy_age_max)?;
        let budget = usize::try_from(config.in_flight_bytes).unwrap_or(usize::MAX).max(4 << 20);
        let small = config.memory_blob_bytes_max.clamp(1, 1 << 20);
        let items = usize::try_from(config.memory_bytes / small.min(4096)).unwrap_or(0).max(64);
        let inner = Inner {
            known: Known::new(config.known_max, config.keep, config.floor()),
            memory: Cache::with_weighter(items, config.memory_bytes, BytesWeight),
            backing,
            refusal: Arc::default(),
            budget: Arc::new(Semaphore::new(budget)),
            counters: Counters::default(),
            actions: ActionMemo::new(config.memo_bytes),
            directories: DirectoryMemo::new(config.memo_bytes),
            trees: TreeRefsMemo::new(config.memo_bytes),
            sink: RwLock::new(None),
            blocking_calls: Arc::new(Semaphore::new(BLOCKING_CALLS_MAX)),
            disk,
            config,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub fn config(&self) -> &CasConfig {
        &self.inner.config
    }

    /// The object store, if the backing is one.
    pub(crate) fn objects(&self) -> Option<&Objects> {
        match &self.inner.backing {
            Some(Backing::Objects(objects)) => Some(objects),
            Some(Backing::Remote(_)) | None => None,
        }
    }

    /// The farm, if the backing is one.
    pub(crate) fn farm(&self) -> Option<&Farm> {
        match &self.inner.backing {
            Some(Backing::Remote(farm)) => Some(farm),
            Some(Backing::Objects(_)) | None => None,
        }
    }

    /// Counters since the store was opened.
    pub fn stats(&self) -> CasStats {
        let counters = &self.inner.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (known_hits, known_misses) = self.inner.known.counts();
        CasStats {
            blobs_written: read(&counters.blobs_written),
            bytes_written: read(&counters.bytes_written),
            memory_hits: read(&counters.memory_hits),
            memory_misses: read(&counters.memory_misses),
            known_hits,
            known_misses,
            action_hits: read(&counters.action_hits),
            action_misses: read(&counters.action_misses),
            action_incomplete: read(&counters.action_incomplete),
            damaged: self.inner.disk.damaged(),
            backing_reads: read(&counters.backing_reads),
        }
    }

    /// Sets the receiver of disk usage reports and replaces the previous one.
    pub fn set_usage_sink(&self, sink: Arc<dyn UsageSink>) {
        *self.inner.sink.write() = Some(sink);
    }

    /// Sets whether writes of new blobs are refused with [`CasError::Full`].
    pub fn set_full(&self, full: bool) {
        self.set_refusal(if full { Refusal::All } else { Refusal::Nothing });
    }

    /// Sets which writes of new blobs are refused.
    pub fn set_refusal(&self, refusal: Refusal) {
        self.inner.refusal.set(refusal);
    }

    /// Whether any writes of new blobs are refused.
    pub fn is_full(&self) -> bool {
        self.inner.is_full()
    }

    /// Returns the missing ones of `digests`, each once, in the order of the request. The others
    /// are kept for another [`CasConfig::keep`].
    pub async fn missing(&self, digests: &[BlobDigest]) -> Result<Vec<BlobDigest>, CasError> {
        if let Some(farm) = self.farm() {
            return farm.missing(digests).await;
        }
        let now = self.inner.known.now();
        let mut cold: Vec<BlobDigest> = digests
            .iter()
            .filter(|digest| !is_empty(digest) && self.inner.known.fresh(digest, now).is_none())
            .copied()
            .collect();
        if cold.is_empty() {
            return Ok(cold);
        }
        let mut mentioned = HashSet::with_capacity(cold.len());
        cold.retain(|digest| mentioned.insert(*digest));
        drop(mentioned);
        let parts: Vec<Vec<BlobDigest>> = cold.chunks(LOOK_UPS).map(<[BlobDigest]>::to_vec).collect();
        let absent: Vec<Vec<BlobDigest>> = stream::iter(parts)
            .map(|part| self.run_blocking(move |inner| inner.touch_blobs(&part)))
            .buffered(4)
            .try_collect()
            .await?;
        let absent = absent.concat();
        match self.objects() {
            Some(objects) => objects.absent(absent, &self.inner.known).await,
            None => Ok(absent),
        }
    }

    /// Whether the store has a blob; if so, it is kept for another [`CasConfig::keep`].
    pub async fn contains(&self, digest: &BlobDigest) -> Result<bool, CasError> {
        Ok(self.missing(std::slice::from_ref(digest)).await?.is_empty())
    }

    /// Forgets that a blob was there. For callers that find a path from [`Cas::local_path`] gone, which happens only
    /// when files of the store are deleted by hand.
    pub fn forget(&self, digest: &BlobDigest) {
        self.inner.known.forget(digest);
        self.inner.memory.remove(digest);
    }

    /// Runs `work` here if it takes less time than a handover to a blocking thread.
    pub(crate) async fn run_blocking_unless<T: Send + 'static>(
        &self,
        short: bool,
        work: impl FnOnce(&Inner) -> Result<T, CasError> + Send + 'static,
    ) -> Result<T, CasError> {
        if short && !self.inner.config.fsync { work(&self.inner) } else { self.run_blocking(work).await }
    }

    /// Runs `work` on a blocking thread.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, CasError> + Send + 'static,
    ) -> Result<T, CasError> {
        if is_thread_dedicated() {
            return work(&self.inner);
        }
        let permit =
            Arc::clone(&self.inner.blocking_calls).acquire_owned().await.map_err(|_| CasError::Stopping)?;
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || {
            let outcome = work(&inner);
            drop(permit);
            outcome
        });
        done.await.map_err(|_| CasError::Stopping)?
    }
}

impl Inner {
    pub(crate) fn is_full(&self) -> bool {
        self.refusal.get() != Refusal::Nothing
    }

    /// Whether a new blob of `size` bytes is refused.
    pub(crate) fn refuses(&self, size: u64) -> bool {
        self.refusal.get().refuses(size)
    }

    /// Reports disk usage. For blocking threads only.
    pub(crate) fn used(&self, bytes: u64) {
        if bytes > 0
            && let Some(sink) = &*self.sink.read()
        {
            sink.used(bytes);
        }
    }

    /// Counts a blob that was stored.
    pub(crate) fn stored(&self, digest: &BlobDigest, bytes: u64) {
        if bytes > 0 {
            add(&self.counters.blobs_written, 1);
            add(&self.counters.bytes_written, digest.size);
        }
    }

    /// Touches blobs in the local tier and returns the missing ones.
    pub(crate) fn touch_blobs(&self, digests: &[BlobDigest]) -> Result<Vec<BlobDigest>, CasError> {
        let at = self.known.now();
        let entries: Vec<Entry> = digests.iter().copied().map(Entry::blob).collect();
        let there = self.disk.touch_many(&entries)?;
        let mut absent = Vec::new();
        for (digest, there) in digests.iter().zip(there) {
            if there {
                self.known.note_local(digest, at);
            } else {
                self.known.forget(digest);
                absent.push(*digest);
            }
        }
        Ok(absent)
    }

    /// Touches one blob in the local tier unless that was done recently. Returns whether it is there.
    pub(crate) fn touch_if_needed(&self, digest: &BlobDigest, now: Moment) -> Result<bool, CasError> {
        if self.known.fresh(digest, now).is_some_and(|seen| seen.local) {
            return Ok(true);
        }
        let there = self.disk.touch(&Entry::blob(*digest))?;
        if there {
            self.known.note(digest, LastUse { at: now, local: true, twin: false });
        }
        Ok(there)
    }

    /// Whether a blob of this size is kept in memory.
    pub(crate) fn is_small(&self, size: u64) -> bool {
        size <= self.config.memory_blob_bytes_max
    }

    /// Copies a small blob into memory: `content` may be a slice of a large message.
    pub(crate) fn remember(&self, digest: &BlobDigest, content: &[u8]) {
        if self.is_small(digest.size) {
            self.memory.insert(*digest, Bytes::copy_from_slice(content));
        }
    }
}
