//! Keeps the blobs that records of builds name, by reading the event stream, from where it was read last.
//!
//! A blob is safe for `cas_keep_min_seconds` after it was stored; within that time its record is read here. While
//! records cannot be read, nothing is evicted.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, SystemTime},
};

use bus::{BusError, EventSubject, Follower, Start, Stored, stream};
use cas::{Cas, CasError, Evictor};
use model::{BlobDigest, BuildRecord, LifecycleEvent, ModelNotice, RecordHead, Sequence};
use service::Context;
use telemetry::error_chain;
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// Longest time between two reads of the stream.
const EVERY: Duration = Duration::from_secs(60);
/// Maximum number of events, and approximate maximum number of blobs, that are handled at once.
const BATCH: usize = 1000;
const BLOBS: usize = 50_000;
/// Time limit for listing the blobs of a folder.
const LISTING: Duration = Duration::from_secs(60);
/// Maximum number of missing blobs that are named in a log line.
const NAMED: usize = 3;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Where blobs are kept.
pub(crate) enum Place {
    /// The folder of the store, from which this process evicts.
    Folder(Evictor),
    /// The object store behind the folder.
    Objects,
}

/// Reads records and keeps what they name.
pub(crate) struct Keeper {
    context: Context,
    cas: Cas,
    place: Place,
    retention: Duration,
    /// Position up to which all records were handled; none before the first complete read.
    read_to: Option<Sequence>,
    /// The folders that are kept, and the day until which, so that a folder is listed once a day.
    trees: HashMap<BlobDigest, u64>,
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
    pub(crate) fn new(context: Context, cas: Cas, place: Place) -> Self {
        let retention = cas.config().retention;
        Self { context, cas, place, retention, read_to: None, trees: HashMap::new() }
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        let safe = self.cas.config().floor();
        let every = (safe / 4).min(EVERY);
        let mut read_at = Instant::now();
        loop {
            let started = Instant::now();
            match self.read_within(safe).await {
                Ok(()) => {
                    read_at = started;
                    self.suspend(false);
                    self.release().await;
                }
                Err(error) => {
                    warn!(
                        error = error_chain(&error),
                        "cannot keep what the records of builds name, retrying"
                    );
                    if read_at.elapsed() > safe / 2 {
                        self.suspend(true);
                    }
                }
            }
            tokio::time::sleep(every).await;
        }
    }

    /// Reads what is new. The first read takes as long as it must: nothing is evicted before its end.
    async fn read_within(&mut self, limit: Duration) -> Result<(), KeepError> {
        if self.read_to.is_none() {
            return self.read().await;
        }
        tokio::time::timeout(limit, self.read()).await.unwrap_or(Err(KeepError::TimedOut(limit)))
    }

    /// Keeps what all records name that were not handled yet.
    async fn read(&mut self) -> Result<(), KeepError> {
        self.keep_model().await?;
        let (_, last) = self.context.bus.stream_positions(stream::EVENTS).await?;
        let start = match self.read_to {
            Some(position) if last <= position => return Ok(()),
            Some(position) => Start::After(position),
            None if last == Sequence(0) => {
                self.read_to = Some(last);
                return Ok(());
            }
            None => Start::LastOfEachSubject,
        };
        let mut follower = Follower::new(&self.context.bus, stream::EVENTS, EventSubject::LIFECYCLES, start);
        follower.open().await;
        while !follower.caught_up() {
            let batch = follower.next(BATCH).await;
            self.keep_batch(&batch).await?;
            // A read that is broken off later continues here.
            self.read_to = self.read_to.map(|position| position.max(follower.cursor()));
        }
        self.read_to = Some(last.max(follower.cursor()));
        debug!(position = last.0, "read what records name");
        Ok(())
    }

    async fn keep_batch(&mut self, batch: &[Stored]) -> Result<(), KeepError> {
        let first = self.read_to.is_none();
        let mut named: BTreeMap<BlobDigest, SystemTime> = BTreeMap::new();
        for stored in batch {
            let until = SystemTime::from(stored.at) + self.retention;
            if until < self.now() {
                continue;
            }
            let Some(record) = record_of(stored, first) else { continue };
            let mut blobs = record.blobs();
            if let Some(job) = record.build.job.as_ref().filter(|job| job.size_bytes.is_none()) {
                match self.cas.resolve(&job.digest, None).await {
                    Ok(blob) => blobs.push(blob),
                    Err(CasError::NotFound { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if let Some(tree) = record.tree() {
                blobs.extend(self.blobs_of_tree(&tree, until).await?);
            }
            for blob in blobs {
                let known = named.entry(blob).or_insert(until);
                *known = until.max(*known);
            }
            if named.len() >= BLOBS {
                self.keep(std::mem::take(&mut named)).await?;
            }
        }
        self.keep(named).await
    }

    /// Keeps blobs for at least the times given, and at most a day longer.
    async fn keep(&self, named: BTreeMap<BlobDigest, SystemTime>) -> Result<(), KeepError> {
        let mut days: BTreeMap<u64, (SystemTime, Vec<BlobDigest>)> = BTreeMap::new();
        for (blob, until) in named {
            let (latest, blobs) = days.entry(day_of(until)).or_insert((until, Vec::new()));
            *latest = until.max(*latest);
            blobs.push(blob);
        }
        for (until, blobs) in days.into_values() {
            let missing = match &self.place {
                Place::Folder(evictor) => evictor.keep(blobs, until).await?,
                Place::Objects => self.cas.keep_objects(blobs).await?,
            };
            if !missing.is_empty() {
                let some = missing.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(" ");
                warn!(
                    count = missing.len(),
                    some, "records of builds name blobs that the store does not have"
                );
            }
        }
        Ok(())
    }

    /// The blobs of a folder, unless they are kept for long enough already. Of a folder that is not valid, or so large
    /// that it takes too long, only the root is kept.
    async fn blobs_of_tree(
        &mut self,
        tree: &BlobDigest,
        until: SystemTime,
    ) -> Result<Vec<BlobDigest>, CasError> {
        let (day, today) = (day_of(until), day_of(self.now()));
        if self.trees.get(tree).is_some_and(|known| *known >= day) {
            return Ok(Vec::new());
        }
        self.trees.retain(|_, known| *known >= today);
        let blobs = match tokio::time::timeout(LISTING, self.cas.blobs_of_tree(tree)).await {
            Ok(Ok(blobs)) => blobs,
            Ok(Err(error)) if !error.is_about_content() => return Err(error),
            Ok(Err(error)) => {
                debug!(error = error_chain(&error), "cannot list the blobs of a folder");
                vec![*tree]
            }
            Err(_) => {
                warn!(%tree, "listing the blobs of a folder took too long: they are not kept");
                vec![*tree]
            }
        };
        self.trees.insert(*tree, day);
        Ok(blobs)
    }

    /// Keeps the occupancy model in use, which no record of a build names.
    async fn keep_model(&self) -> Result<(), KeepError> {
        let (_, notice) = self.context.bus.entry::<ModelNotice>(&()).await?;
        let Some(notice) = notice else { return Ok(()) };
        match self.cas.resolve(&notice.digest, notice.size_bytes).await {
            Ok(blob) => self.keep([(blob, self.now() + self.retention)].into()).await,
            Err(CasError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn now(&self) -> SystemTime {
        self.context.bus.now().into()
    }

    fn suspend(&self, suspended: bool) {
        if let Place::Folder(evictor) = &self.place {
            evictor.suspend(suspended);
        }
    }

    /// Deletes what was kept until yesterday and nothing needs any more.
    async fn release(&self) {
        let Place::Folder(evictor) = &self.place else { return };
        match evictor.release(self.now()).await {
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
}

fn day_of(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() / DAY.as_secs()
}

/// The record of a message that may name blobs that no earlier message named. `first`: there is no earlier one.
fn record_of(stored: &Stored, first: bool) -> Option<BuildRecord> {
    let record = stored.read().and_then(|head: RecordHead| {
        let is_new = first || head.event != LifecycleEvent::Started;
        is_new.then(|| stored.record()).transpose()
    });
    record
        .inspect_err(|error| {
            warn!(
                subject = stored.subject,
                error = error_chain(error),
                "cannot read a record: its blobs are not kept"
            );
        })
        .ok()
        .flatten()
}
