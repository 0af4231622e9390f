//! The local tier: blobs, records of results and of chunk lists, as files in one folder.
//!
//! Methods that access the folder block; call them from blocking threads.

mod files;
mod list;
mod marks;
mod memory;
mod read;
mod records;
mod spool;
mod stage;
mod write;

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use model::{BlobDigest, Zone, ZoneUse};
use parking_lot::RwLock;

use crate::{
    CasConfig, CasError, CasStats, Refusal,
    disk::Disk,
    known::{Known, LastUse, Moment},
    layout::{Entry, Layout},
    refusal::Refusing,
    stats::Counter,
};
use memory::SmallBlobs;

pub(crate) use files::WantedFile;
pub use list::Listed;
pub(crate) use marks::{LookUp, Mark, TakenMark};
pub(crate) use records::{Stamp, content_of, record_of};
pub(crate) use spool::Spool;
pub(crate) use stage::Staged;
pub(crate) use write::Needed;

/// Receives reports of disk usage.
pub trait UsageSink: Send + Sync + 'static {
    /// Adds `bytes` of disk usage, in allocated blocks. Called from blocking threads, once for each batch
    /// of writes; must not block.
    fn used(&self, bytes: u64);

    /// A zone has `more` than before. Called once for each batch of marks; must not block.
    fn possessed(&self, zone: &Zone, more: ZoneUse);

    /// A write failed for want of space, or was refused. Must not block.
    fn lacks_space(&self);
}

/// What the files of the folder are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tier {
    /// The only copies of their blobs.
    Only,
    /// Copies of blobs that another store has: when space is short, a new blob has no copy here. A copy older than
    /// `proof_age_max` does not prove that the other store has the blob.
    Copies { proof_age_max: Option<Duration> },
}

/// The blobs and records in the folder, and what this process knows of them.
pub(crate) struct Local {
    disk: Disk,
    known: Known,
    memory: SmallBlobs,
    tier: Tier,
    blob_bytes_max: u64,
    refusal: Arc<Refusing>,
    sink: RwLock<Option<Arc<dyn UsageSink>>>,
    blobs_written: Counter,
    bytes_written: Counter,
}

impl Local {
    /// Opens the folder of the store and creates missing subfolders.
    pub(crate) fn open(config: &CasConfig, tier: Tier) -> Result<Self, CasError> {
        let copy_age_max = match tier {
            Tier::Only => None,
            Tier::Copies { proof_age_max } => proof_age_max,
        };
        Ok(Self {
            disk: Disk::open(&config.root, config.fsync, copy_age_max)?,
            known: Known::new(config.known_max, config.keep, config.floor()),
            memory: SmallBlobs::new(config),
            tier,
            blob_bytes_max: config.blob_bytes_max,
            refusal: Arc::default(),
            sink: RwLock::new(None),
            blobs_written: Counter::default(),
            bytes_written: Counter::default(),
        })
    }

    /// Counters of this tier; those of other parts are 0.
    pub(crate) fn stats(&self) -> CasStats {
        let (known_hits, known_misses) = self.known.counts();
        let (memory_hits, memory_misses) = self.memory.counts();
        CasStats {
            blobs_written: self.blobs_written.get(),
            bytes_written: self.bytes_written.get(),
            memory_hits,
            memory_misses,
            known_hits,
            known_misses,
            damaged: self.disk.damaged(),
            ..CasStats::default()
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        self.disk.layout()
    }

    pub(crate) fn path(&self, entry: &Entry) -> PathBuf {
        self.disk.layout().path(entry)
    }

    /// Sets the receiver of disk usage reports and replaces the previous one.
    pub(crate) fn set_usage_sink(&self, sink: Arc<dyn UsageSink>) {
        *self.sink.write() = Some(sink);
    }

    /// Which writes of new blobs are refused; the evictor sets it too.
    pub(crate) fn refusal(&self) -> &Arc<Refusing> {
        &self.refusal
    }

    pub(crate) fn is_full(&self) -> bool {
        self.refusal.get() != Refusal::Nothing
    }

    /// Whether a new file of `size` bytes is refused.
    pub(crate) fn refuses(&self, size: u64) -> bool {
        self.refusal.get().refuses(size)
    }

    /// Whether the store refuses a new blob of `size` bytes.
    pub(crate) fn refuses_blob(&self, size: u64) -> bool {
        match self.tier {
            Tier::Only => self.refuses(size),
            Tier::Copies { .. } => false,
        }
    }

    /// The current moment, by the clock of [`Self::is_known`].
    pub(crate) fn now(&self) -> Moment {
        self.known.now()
    }

    /// Whether what was touched at `at` does not need another touch yet.
    pub(crate) fn is_fresh(&self, at: Moment, now: Moment) -> bool {
        self.known.is_fresh(at, now)
    }

    /// Whether the store has a blob that was touched recently.
    pub(crate) fn is_known(&self, digest: &BlobDigest, now: Moment) -> bool {
        self.known.fresh(digest, now).is_some()
    }

    /// Records that another store had blobs at the moment `at`.
    pub(crate) fn note_elsewhere(&self, digests: &[BlobDigest], at: Moment) {
        for digest in digests {
            self.known.note(digest, LastUse { at, local: false, twin: false });
        }
    }

    /// Records that a blob was not found.
    pub(crate) fn note_absent(&self, digest: &BlobDigest) {
        self.known.forget(digest);
    }

    /// Forgets that a blob was there, and its content.
    pub(crate) fn forget(&self, digest: &BlobDigest) {
        self.known.forget(digest);
        self.memory.remove(digest);
    }

    /// Whether a blob of this size is kept in memory.
    pub(crate) fn is_small(&self, size: u64) -> bool {
        self.memory.is_small(size)
    }

    /// Extends the life of a file. Returns whether it is there.
    pub(crate) fn touch(&self, entry: &Entry) -> Result<bool, CasError> {
        self.disk.touch(entry)
    }

    /// Extends the life of blobs and returns the missing ones.
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

    /// Extends the life of a blob unless that was done recently. Returns whether it is there.
    fn touch_if_needed(&self, digest: &BlobDigest, now: Moment) -> Result<bool, CasError> {
        if self.known.fresh(digest, now).is_some_and(|seen| seen.local) {
            return Ok(true);
        }
        let there = self.disk.touch(&Entry::blob(*digest))?;
        if there {
            self.known.note_local(digest, now);
        }
        Ok(there)
    }

    /// Removes a file whose content is wrong.
    pub(crate) fn remove_damaged(&self, entry: &Entry) {
        self.disk.remove_damaged(&self.path(entry));
    }

    /// Reports `bytes` of disk usage to the sink.
    fn used(&self, bytes: u64) {
        if bytes > 0
            && let Some(sink) = &*self.sink.read()
        {
            sink.used(bytes);
        }
    }

    /// Reports what a zone has that it did not have before.
    fn possessed(&self, zone: &Zone, more: ZoneUse) {
        if more != ZoneUse::NOTHING
            && let Some(sink) = &*self.sink.read()
        {
            sink.possessed(zone, more);
        }
    }

    /// Reports the outcome of a write to the receiver of disk usage if it says that space is short.
    pub(crate) fn noted<T>(&self, outcome: Result<T, CasError>) -> Result<T, CasError> {
        if matches!(outcome, Err(CasError::Full))
            && let Some(sink) = &*self.sink.read()
        {
            sink.lacks_space();
        }
        outcome
    }

    /// Counts a blob that was stored.
    fn stored(&self, digest: &BlobDigest, bytes: u64) {
        if bytes > 0 {
            self.blobs_written.add(1);
            self.bytes_written.add(digest.size);
        }
    }

    /// The error for a file of the folder that cannot be read.
    pub(crate) fn unreadable(&self, entry: &Entry, source: io::Error) -> CasError {
        CasError::disk("reading", &self.path(entry), source)
    }
}
