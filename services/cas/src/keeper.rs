//! Keeps the blobs that records of builds, waiting requests and build events name, by reading their streams, each from
//! where it was read the last time.
//!
//! A blob is safe for `cas_keep_min_seconds` after it was stored; within that time its request or record is read here.
//! While these cannot be read, nothing is evicted.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, SystemTime},
};

use bus::{
    ArchivedBlobs, BazelSubject, BusError, EventSubject, Follower, RequestSubject, Start, Stored, named_blob,
    stream,
};
use cas::{Cas, CasError, Evictor};
use model::{
    BlobDigest, BuildRecord, BuildRequest, Digest, Environment, JobSource, LifecycleEvent, ModelNotice,
    RecordHead, Sequence,
};
use policy::{StreamPosition, Unread, unread};
use service::Context;
use telemetry::error_chain;
use tokio::sync::watch;
use tracing::{debug, info, warn};

/// Shortest and longest time between two reads of the stream.
const LEAST: Duration = Duration::from_millis(250);
const EVERY: Duration = Duration::from_secs(60);
/// Maximum number of events that are read at once, and that are handled together.
const BATCH: usize = 1000;
const PART: usize = 50;
/// Maximum number of blobs that are kept in one call.
const BLOBS: usize = 5_000;
/// Time limit for the next events of those that the stream has.
const SILENCE: Duration = Duration::from_secs(30);
/// Time limit for listing the blobs of a folder.
const LISTING: Duration = Duration::from_secs(60);
/// Maximum number of missing blobs that are named in a log line.
const NAMED: usize = 3;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Where blobs are kept.
#[derive(Clone)]
pub(crate) enum Place {
    /// The folder of the store, from which this process evicts.
    Folder(Evictor),
    /// The object store behind the folder.
    Objects,
}

impl Place {
    fn suspend(&self, suspended: bool) {
        match self {
            Self::Folder(evictor) => evictor.suspend(suspended),
            // Objects are deleted only after a successful read.
            Self::Objects => {}
        }
    }

    /// How much longer than requested a blob is kept at least.
    fn longer(&self) -> Duration {
        match self {
            Self::Folder(_) => DAY,
            Self::Objects => Duration::ZERO,
        }
    }
}

/// Reads records and keeps what they name.
pub(crate) struct Keeper {
    context: Context,
    cas: Cas,
    place: Place,
    retention: Duration,
    /// The retention without an archive, as the settings say.
    shortest: Duration,
    /// Whether the archive said how long it keeps rows. On a bus that was lost, it did not yet.
    has_archive: bool,
    /// Position up to which all records were handled; none before the first complete read.
    records_read: Option<StreamPosition>,
    /// Position up to which all requests were handled.
    requests_read: Option<StreamPosition>,
    /// Position up to which all messages were handled that name blobs with build events.
    events_read: Option<StreamPosition>,
    /// The folders that are kept, and until when, so that a folder is listed once a day.
    trees: HashMap<BlobDigest, SystemTime>,
    /// The blobs of environments that are kept, and until when: each is kept again once a day.
    environments: HashMap<BlobDigest, SystemTime>,
    /// When folders whose time has passed were last removed from these.
    cleaned: SystemTime,
    /// The retention, if the last read succeeded.
    current: watch::Sender<Option<Duration>>,
}

/// Why the blobs of records were not kept.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Store(#[from] CasError),
}

impl Keeper {
    pub(crate) fn new(context: Context, cas: Cas, place: Place) -> Self {
        let retention = cas.config().retention;
        let (trees, environments, cleaned) = (HashMap::new(), HashMap::new(), SystemTime::UNIX_EPOCH);
        let current = watch::Sender::new(None);
        let (records_read, requests_read, events_read) = (None, None, None);
        Self {
            context,
            cas,
            place,
            retention,
            shortest: retention,
            has_archive: false,
            records_read,
            requests_read,
            events_read,
            trees,
            environments,
            cleaned,
            current,
        }
    }

    /// How long blobs are kept that records name; none while it is not known what these are.
    pub(crate) fn current(&self) -> watch::Receiver<Option<Duration>> {
        self.current.subscribe()
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        let safe = self.cas.config().floor();
        let every = (safe / 4).clamp(LEAST, EVERY);
        let place = self.place.clone();
        loop {
            // A long read continues; blobs that it has not reached must not be evicted.
            let read = {
                let read = self.read();
                tokio::pin!(read);
                tokio::select! {
                    read = &mut read => read,
                    () = tokio::time::sleep((safe / 2).max(LEAST)) => {
                        place.suspend(true);
                        read.await
                    }
                }
            };
            self.current.send_replace(read.is_ok().then_some(self.retention));
            // After a failure nothing is evicted until a read succeeds.
            place.suspend(read.is_err());
            match read {
                Ok(()) => self.release().await,
                Err(error) => {
                    warn!(
                        error = error_chain(&error),
                        "cannot keep what the records of builds name, retrying"
                    );
                }
            }
            tokio::time::sleep(every).await;
        }
    }

    /// Keeps what all requests and records name that were not handled yet.
    async fn read(&mut self) -> Result<(), KeepError> {
        self.read_retention().await?;
        self.keep_model().await?;
        self.keep_environments().await?;
        // The record of a request that an enqueuer reads meanwhile is read after it.
        self.read_requests().await?;
        self.read_build_events().await?;
        self.read_records().await
    }

    /// Reads how long the archive keeps rows that name blobs.
    async fn read_retention(&mut self) -> Result<(), KeepError> {
        let (_, archived) = self.context.bus.buckets().get::<ArchivedBlobs>(&()).await?;
        self.has_archive = archived.is_some();
        let archived = archived.map_or(Duration::ZERO, |archived| Duration::from_secs(archived.seconds));
        let retention = self.shortest.max(archived);
        if retention != self.retention {
            info!(
                days = retention.as_secs() / DAY.as_secs(),
                "the archive changed how long records keep blobs"
            );
            // What was read is kept until another day.
            (self.records_read, self.requests_read, self.events_read) = (None, None, None);
            self.trees.clear();
            self.environments.clear();
            self.retention = retention;
        }
        Ok(())
    }

    /// Keeps the images of environments, for as long as these exist.
    async fn keep_environments(&mut self) -> Result<(), KeepError> {
        let until = self.now() + self.retention;
        let all = self.context.bus.buckets().all::<Environment>().await?;
        let named = all.values().flat_map(Environment::blobs);
        let named: BTreeMap<_, _> = named
            .filter(|blob| self.environments.get(blob).is_none_or(|kept| *kept + DAY < until))
            .map(|blob| (blob, until))
            .collect();
        if self.keep(NamedBy::Environments, named.clone()).await? == 0 {
            self.environments.extend(named);
        }
        Ok(())
    }

    /// Reads which blobs have large build events.
    async fn read_build_events(&mut self) -> Result<(), KeepError> {
        let end = self.end_of(stream::BAZEL).await?;
        let mut from = match unread(self.events_read, end) {
            Unread::Nothing => end.position,
            Unread::After(position) => position,
            Unread::All | Unread::AllAgain => Sequence(0),
        };
        let bus = self.context.bus.clone();
        while from < end.position {
            let next = Sequence(from.0 + 1);
            let tail = bus.stream(stream::BAZEL).read_from(BazelSubject::BLOBS, next, BATCH).await?;
            let Some(last) = tail.events.last() else { break };
            from = last.sequence;
            let until = |stored: &Stored| SystemTime::from(stored.at) + self.retention;
            let named = tail.events.iter().filter_map(|stored| Some((named_blob(stored)?, until(stored))));
            self.keep(NamedBy::BuildEvents, named.collect()).await?;
        }
        self.events_read = Some(end);
        Ok(())
    }

    async fn read_records(&mut self) -> Result<(), KeepError> {
        let end = self.end_of(stream::EVENTS).await?;
        let start = match unread(self.records_read, end) {
            Unread::Nothing => {
                self.records_read = Some(end);
                return Ok(());
            }
            Unread::After(position) => Start::After(position),
            Unread::All => Start::LastOfEachSubject,
            Unread::AllAgain => {
                warn!("the event stream was created again or restored: reading all records of builds again");
                // As at the start, it is not known what records name.
                self.place.suspend(true);
                self.current.send_replace(None);
                self.records_read = None;
                Start::LastOfEachSubject
            }
        };
        let mut follower = Follower::new(&self.context.bus, stream::EVENTS, EventSubject::LIFECYCLES, start);
        loop {
            // Also after a lost connection: there may be nothing more to wait for.
            follower.open().await;
            if follower.caught_up() {
                break;
            }
            // A stream that is removed meanwhile has nothing more.
            let next = tokio::time::timeout(SILENCE, follower.next(BATCH)).await;
            let Ok(next) = next else {
                return Err(BusError::Timeout { what: "reading the records of builds".to_owned() }.into());
            };
            for part in next.chunks(PART) {
                self.keep_part(part).await?;
                // A read that fails later continues here.
                let handled = part.last().map_or(Sequence(0), |stored| stored.sequence);
                if let Some(read) = &mut self.records_read {
                    read.position = read.position.max(handled);
                }
            }
        }
        self.records_read = Some(StreamPosition { position: end.position.max(follower.cursor()), ..end });
        debug!(position = end.position.0, "read what records name");
        Ok(())
    }

    /// Reads the requests that no enqueuer has handled yet.
    async fn read_requests(&mut self) -> Result<(), KeepError> {
        let end = self.end_of(stream::REQUESTS).await?;
        let mut from = match unread(self.requests_read, end) {
            Unread::Nothing => end.position,
            Unread::After(position) => position,
            Unread::All | Unread::AllAgain => Sequence(0),
        };
        let bus = self.context.bus.clone();
        let mut part = Vec::new();
        while from < end.position {
            let next = Sequence(from.0 + 1);
            let found = bus.stream(stream::REQUESTS).first_from(RequestSubject::ALL, next).await?;
            let Some(stored) = found else { break };
            from = stored.sequence;
            let until = SystemTime::from(stored.at) + self.retention;
            match stored.request() {
                Ok(request) => part.push(Named::by_request(&request, until)),
                // The enqueuer rejects it.
                Err(error) => debug!(error = error_chain(&error), "cannot read a request"),
            }
            if part.len() >= PART {
                self.keep_named(NamedBy::Requests, std::mem::take(&mut part)).await?;
                // A read that fails later continues here.
                self.requests_read = Some(StreamPosition { position: from, ..end });
            }
        }
        self.keep_named(NamedBy::Requests, part).await?;
        self.requests_read = Some(end);
        Ok(())
    }

    async fn end_of(&self, stream: &str) -> Result<StreamPosition, BusError> {
        let state = self.context.bus.stream(stream).state().await?;
        Ok(StreamPosition { created: state.created, position: state.last })
    }

    async fn keep_part(&mut self, part: &[Stored]) -> Result<(), KeepError> {
        let (first, now, retention) = (self.records_read.is_none(), self.now(), self.retention);
        let named = part.iter().filter_map(|stored| {
            let until = SystemTime::from(stored.at) + retention;
            let record = (until >= now).then(|| record_of(stored, first)).flatten()?;
            Some(Named::by_record(&record, until))
        });
        self.keep_named(NamedBy::Records, named.collect()).await
    }

    async fn keep_named(&mut self, by: NamedBy, all: Vec<Named>) -> Result<(), KeepError> {
        let (mut kept, mut listed) = (BTreeMap::new(), Vec::new());
        for Named { mut blobs, job, tree, until } in all {
            if until < self.now() {
                continue;
            }
            if let Some(job) = job {
                match self.cas.resolve(&job, None).await {
                    Ok(blob) => blobs.push(blob),
                    Err(CasError::NotFound { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if let Some(tree) = tree.filter(|tree| !self.is_kept(tree, until)) {
                blobs.extend(self.blobs_of_tree(&tree).await?);
                listed.push((tree, until));
            }
            for blob in blobs {
                let known = kept.entry(blob).or_insert(until);
                *known = until.max(*known);
            }
        }
        // What is missing may be uploaded again: then its folder is listed again.
        if self.keep(by, kept).await? == 0 {
            self.trees.extend(listed);
        }
        Ok(())
    }

    /// Keeps blobs at least until the times given. Returns how many are missing.
    async fn keep(&self, by: NamedBy, named: BTreeMap<BlobDigest, SystemTime>) -> Result<usize, KeepError> {
        let named: Vec<(BlobDigest, SystemTime)> = named.into_iter().collect();
        let mut count = 0;
        for part in named.chunks(BLOBS) {
            let missing = match &self.place {
                Place::Folder(evictor) => evictor.keep(part.to_vec()).await?,
                Place::Objects => self.cas.keep_objects(part.to_vec(), self.retention).await?,
            };
            if !missing.is_empty() {
                by.log_missing(&missing);
            }
            count += missing.len();
        }
        Ok(count)
    }

    /// Whether the blobs of a folder are kept for long enough already.
    fn is_kept(&mut self, tree: &BlobDigest, until: SystemTime) -> bool {
        let now = self.now();
        if now >= self.cleaned + DAY {
            self.cleaned = now;
            self.trees.retain(|_, kept| *kept >= now);
        }
        let longer = self.place.longer();
        self.trees.get(tree).is_some_and(|kept| *kept + longer >= until)
    }

    /// The blobs of a folder. Of one that is not valid, or so large that listing it takes too long, only the root.
    async fn blobs_of_tree(&self, tree: &BlobDigest) -> Result<Vec<BlobDigest>, CasError> {
        match tokio::time::timeout(LISTING, self.cas.blobs_of_tree(tree)).await {
            Ok(Err(error)) if error.is_about_content() => {
                debug!(error = error_chain(&error), "cannot list the blobs of a folder");
                Ok(vec![*tree])
            }
            Ok(outcome) => outcome,
            Err(_) => {
                warn!(%tree, "listing the blobs of a folder took too long: they are not kept");
                Ok(vec![*tree])
            }
        }
    }

    /// Keeps the occupancy model in use, which no record of a build names.
    async fn keep_model(&self) -> Result<(), KeepError> {
        let (_, notice) = self.context.bus.buckets().get::<ModelNotice>(&()).await?;
        let Some(notice) = notice else { return Ok(()) };
        match self.cas.resolve(&notice.digest, notice.size_bytes).await {
            Ok(blob) => {
                self.keep(NamedBy::Records, [(blob, self.now() + self.retention)].into()).await.map(drop)
            }
            Err(CasError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn now(&self) -> SystemTime {
        self.context.bus.now().into()
    }

    /// Deletes what was kept until yesterday, or longer than the retention is now, and nothing needs any more.
    async fn release(&self) {
        let Place::Folder(evictor) = &self.place else { return };
        let now = self.now();
        match evictor.release(now, self.has_archive.then(|| now + self.retention)).await {
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

/// What names the blobs that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamedBy {
    Requests,
    Records,
    BuildEvents,
    Environments,
}

impl NamedBy {
    fn log_missing(self, missing: &[BlobDigest]) {
        let count = missing.len();
        let some = missing.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(" ");
        match self {
            // A client can publish a request that names any blob.
            Self::Requests => debug!(count, some, "requests name blobs that the store does not have"),
            Self::Environments => debug!(count, some, "environments name blobs that the store does not have"),
            Self::BuildEvents => warn!(count, some, "build events are in blobs that the store does not have"),
            Self::Records => warn!(count, some, "records of builds name blobs that the store does not have"),
        }
    }
}

/// What a record or a request names, and until when that is kept.
struct Named {
    blobs: Vec<BlobDigest>,
    /// A job whose size is not known.
    job: Option<Digest>,
    tree: Option<BlobDigest>,
    until: SystemTime,
}

impl Named {
    fn by_record(record: &BuildRecord, until: SystemTime) -> Self {
        let job = record.build.job.as_ref().filter(|job| job.size_bytes.is_none());
        let job = job.map(|job| job.digest.clone());
        Self { blobs: record.blobs(), job, tree: record.tree(), until }
    }

    fn by_request(request: &BuildRequest, until: SystemTime) -> Self {
        let tree = request.context.tree();
        let (blob, job) = match &request.job {
            Some(JobSource::Stored(job)) => match job.size_bytes {
                Some(size) => (Some(job.digest.of_size(size)), None),
                None => (None, Some(job.digest.clone())),
            },
            Some(JobSource::Inline(_)) | None => (None, None),
        };
        Self { blobs: blob.into_iter().collect(), job, tree, until }
    }
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
