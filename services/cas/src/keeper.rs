//! Keeps the blobs that records of builds name, by reading the event stream, from where it was read last.
//!
//! A blob is safe for `cas_keep_min_seconds` after it was stored; within that time its record is read here. While
//! records cannot be read, nothing is evicted.

use std::time::{Duration, SystemTime};

use bus::{BusError, EventSubject, Follower, Start, Stored, stream};
use cas::{Cas, CasError, Evictor};
use model::{BlobDigest, BuildRecord, LifecycleEvent, RecordHead, Sequence};
use service::Context;
use telemetry::error_chain;
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// Longest time between two reads of the stream.
const EVERY: Duration = Duration::from_secs(60);
/// Maximum number of events that are handled at once.
const BATCH: usize = 1000;
/// Time between two deletions of old objects from an object store.
const SWEEP: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of missing blobs that are named in a log line.
const NAMED: usize = 3;

/// Reads records and keeps what they name.
pub(crate) struct Keeper {
    context: Context,
    cas: Cas,
    evictor: Evictor,
    retention: Duration,
}

/// Why the blobs of records were not kept.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Store(#[from] CasError),
    #[error("the event stream was not read within {} s", .0.as_secs())]
    TimedOut(Duration),
}

impl Keeper {
    pub(crate) fn new(context: Context, cas: Cas, evictor: Evictor) -> Self {
        let retention = Duration::from_secs(context.settings.objects_days * 24 * 3600);
        Self { context, cas, evictor, retention }
    }

    /// Runs until the context is stopped.
    pub(crate) async fn run(self) {
        // The first reading takes as long as it must: nothing is evicted before its end.
        let (mut read_to, mut limit) = (Sequence(0), None);
        let safe = self.cas.config().floor();
        let every = (safe / 4).min(EVERY);
        let (mut read_at, mut swept_at) = (Instant::now(), None::<Instant>);
        loop {
            let started = Instant::now();
            match self.unless_slow(self.read(read_to), limit).await {
                Ok(position) => {
                    (read_to, read_at, limit) = (position, started, Some(safe));
                    self.evictor.suspend(false);
                    self.release().await;
                }
                Err(error) => {
                    warn!(
                        error = error_chain(&error),
                        "cannot keep what the records of builds name, retrying"
                    );
                    if read_at.elapsed() > safe / 2 {
                        self.evictor.suspend(true);
                    }
                }
            }
            if swept_at.is_none_or(|at| at.elapsed() > SWEEP) {
                swept_at = Some(started);
                self.sweep().await;
            }
            tokio::select! {
                () = self.context.stop.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
        }
    }

    async fn unless_slow(
        &self,
        reading: impl Future<Output = Result<Sequence, KeepError>>,
        limit: Option<Duration>,
    ) -> Result<Sequence, KeepError> {
        match limit {
            Some(limit) => {
                tokio::time::timeout(limit, reading).await.unwrap_or(Err(KeepError::TimedOut(limit)))
            }
            None => reading.await,
        }
    }

    /// Keeps what all records name that were written after `position`. Returns the position of the last one.
    async fn read(&self, position: Sequence) -> Result<Sequence, KeepError> {
        self.keep_model().await?;
        let (_, last) = self.context.bus.stream_positions(stream::EVENTS).await?;
        if last <= position {
            return Ok(position);
        }
        let first = position == Sequence(0);
        let start = if first { Start::LastOfEachSubject } else { Start::After(position) };
        let mut follower = Follower::new(&self.context.bus, stream::EVENTS, EventSubject::LIFECYCLES, start);
        follower.open().await;
        let mut records = 0;
        while !follower.caught_up() {
            let batch = follower.next(BATCH).await;
            records += batch.len();
            self.keep_batch(&batch, first).await?;
        }
        debug!(records, position = last.0, "read what records name");
        Ok(last.max(follower.cursor()))
    }

    async fn keep_batch(&self, batch: &[Stored], first: bool) -> Result<(), KeepError> {
        let mut blobs = Vec::new();
        let mut latest = SystemTime::UNIX_EPOCH;
        for stored in batch {
            let Some(record) = record_of(stored, first) else { continue };
            let at = SystemTime::from(stored.at);
            if at + self.retention < SystemTime::from(self.context.bus.now()) {
                continue;
            }
            latest = latest.max(at);
            blobs.extend(record.blobs());
            if let Some(job) = record.build.job.as_ref().filter(|job| job.size_bytes.is_none()) {
                blobs.extend(self.cas.resolve(&job.digest, None).await.ok());
            }
            if let Some(tree) = record.tree() {
                blobs.extend(self.blobs_of_tree(&tree).await?);
            }
        }
        if blobs.is_empty() {
            return Ok(());
        }
        blobs.sort_unstable();
        blobs.dedup();
        let missing = self.evictor.keep(blobs, latest + self.retention).await?;
        if !missing.is_empty() {
            let some = missing.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(" ");
            warn!(count = missing.len(), some, "records of builds name blobs that the store does not have");
        }
        Ok(())
    }

    /// The blobs of a folder. A folder that a client uploaded wrongly is of no concern here.
    async fn blobs_of_tree(&self, tree: &BlobDigest) -> Result<Vec<BlobDigest>, CasError> {
        match self.cas.blobs_of_tree(tree).await {
            Err(error) if error.is_about_content() => {
                debug!(error = error_chain(&error), "cannot list the blobs of a folder");
                Ok(vec![*tree])
            }
            outcome => outcome,
        }
    }

    /// Keeps the occupancy model in use, which no record of a build names.
    async fn keep_model(&self) -> Result<(), KeepError> {
        let (_, notice) = self.context.bus.current_model().await?;
        let blob = notice.and_then(|notice| Some(notice.digest.of_size(notice.size_bytes?)));
        if let Some(blob) = blob {
            self.evictor.keep(vec![blob], SystemTime::from(self.context.bus.now()) + self.retention).await?;
        }
        Ok(())
    }

    /// Deletes what was kept until yesterday and nothing needs any more.
    async fn release(&self) {
        match self.evictor.release(self.context.bus.now().into()).await {
            Ok(pass) if pass.deleted > 0 => {
                info!(
                    deleted = pass.deleted,
                    freed = pass.freed,
                    "deleted blobs that no record names any more"
                );
            }
            Ok(_) => {}
            Err(error) => warn!(error = error_chain(&error), "cannot delete blobs that no record names"),
        }
    }

    async fn sweep(&self) {
        match self.cas.sweep_objects().await {
            Ok(0) => {}
            Ok(deleted) => info!(deleted, "deleted objects that were not used for objects_days"),
            Err(error) => {
                warn!(error = error_chain(&error), "cannot delete old objects from the object store")
            }
        }
    }
}

/// The record of a message that may name blobs that no earlier message named. `first`: there is no earlier one.
fn record_of(stored: &Stored, first: bool) -> Option<BuildRecord> {
    let head: RecordHead = stored.read().ok()?;
    if head.event == LifecycleEvent::Started && !first {
        return None;
    }
    // What cannot be read names nothing that a reader could find.
    stored.record().ok()
}
