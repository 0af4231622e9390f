//! An object store behind the local tier.

use std::{
    collections::HashSet,
    fs::File,
    io,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use invariant::{Present as _, impossible};
use model::{BlobDigest, DigestFunction, StoreId, Zone};
use object_store::{
    GetOptions, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt as _, ObjectStoreScheme, PutMode,
    PutPayload, WriteMultipart,
    path::{Path as Key, PathPart},
};
use parking_lot::Mutex;
use tokio::{sync::Semaphore, task::spawn_blocking};

use crate::{
    CasError,
    empty_blob::is_empty,
    layout::{Entry, ID_NAME, Kind, ZONES, mark_place},
    pieces::{BlobStream, read_some},
    put_progress::PutProgress,
};

/// Kinds of URLs that name a store.
const EXPECTED: &str = "expected file:///PATH, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or \
                        grpc://HOST:PORT";
/// Maximum number of concurrent look-ups.
const LOOK_UPS: usize = 32;
/// Part size in bytes: larger files are uploaded in parts of this size.
const PART_BYTES: usize = 8 << 20;
/// Maximum number of parts of one file in flight.
const PARTS: usize = 2;
/// A look-up renews objects older than one part in this many of the retention.
const LOOK_UP_SHARE: u32 = 2;
/// Objects are deleted one part in this many of the retention after its end.
const KEEP_SHARE: u32 = 10;
/// Maximum number of objects that are renewed at a time.
const RENEWALS: usize = 4;

/// An object store that has every blob that counts as stored.
#[derive(Debug)]
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Key,
    retention: Duration,
    renewals: Renewals,
    /// The objects that are renewed in the background.
    renewing: Arc<Mutex<HashSet<Key>>>,
}

/// Writes objects again, which starts their retention again: not every object store can set only the time.
#[derive(Debug, Clone)]
struct Renewals {
    store: Arc<dyn ObjectStore>,
    /// One permit for each renewal at a time, since large objects fill the memory.
    permits: Arc<Semaphore>,
}

impl Renewals {
    /// Returns whether the object exists.
    async fn renew(&self, key: &Key) -> Result<bool, object_store::Error> {
        // Never closed.
        let _permit = self.permits.acquire().await.ok();
        let found = match self.store.get(key).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(false),
            outcome => outcome?,
        };
        if found.meta.size <= PART_BYTES as u64 {
            let content = found.bytes().await?;
            self.store.put(key, PutPayload::from_bytes(content)).await?;
            return Ok(true);
        }
        let upload = self.store.put_multipart(key).await?;
        let mut writer = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        if let Err(error) = Self::copy(found, &mut writer).await {
            // The parts never become an object; the error to report is the first one.
            let _ = writer.abort().await;
            return Err(error);
        }
        writer.finish().await?;
        Ok(true)
    }

    async fn copy(found: GetResult, writer: &mut WriteMultipart) -> Result<(), object_store::Error> {
        let mut pieces = found.into_stream();
        while let Some(piece) = pieces.next().await {
            writer.wait_for_capacity(PARTS).await?;
            writer.put(piece?);
        }
        Ok(())
    }
}

/// Age at which an object is deleted: longer than the retention, so that named objects need no renewal for a while.
fn deleted_after(retention: Duration) -> Duration {
    retention + retention / KEEP_SHARE
}

impl Objects {
    /// Opens the store at `url`. Reads credentials from the environment, in the variables of the cloud's own tools.
    pub(crate) fn open(url: &str, retention: Duration) -> Result<Self, CasError> {
        let unsupported = |why: String| CasError::Unsupported { url: url.to_owned(), why };
        // Only the first call in the process has an effect.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let parsed = url::Url::parse(url).map_err(|_| unsupported(EXPECTED.to_owned()))?;
        if ObjectStoreScheme::parse(&parsed).is_err() {
            return Err(unsupported(EXPECTED.to_owned()));
        }
        let cloud = |name: &str| ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|prefix| name.starts_with(prefix));
        let options = std::env::vars().filter(|(name, _)| cloud(name));
        let (store, prefix) =
            object_store::parse_url_opts(&parsed, options).map_err(|error| unsupported(error.to_string()))?;
        let store: Arc<dyn ObjectStore> = store.into();
        let renewals = Renewals { store: Arc::clone(&store), permits: Arc::new(Semaphore::new(RENEWALS)) };
        Ok(Self { store, prefix, retention, renewals, renewing: Arc::default() })
    }

    fn key(&self, entry: &Entry) -> Key {
        self.place(&entry.relative_path())
    }

    /// The key of what is at this place below the root of a store.
    fn place(&self, relative: &str) -> Key {
        let mut key = self.prefix.to_string();
        if !key.is_empty() {
            key.push('/');
        }
        key.push_str(relative);
        Key::from(key)
    }

    fn id_key(&self) -> Key {
        self.prefix.parts().chain([PathPart::from(ID_NAME)]).collect()
    }

    /// Returns the id of the store, if it has one.
    pub(crate) async fn id(&self) -> Result<Option<StoreId>, CasError> {
        let key = self.id_key();
        let found = match self.store.get(&key).await {
            Ok(found) => found.bytes().await.map_err(Self::failed("reading", &key))?,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(Self::failed("reading", &key)(error)),
        };
        Ok(std::str::from_utf8(&found).ok().and_then(|text| text.parse().ok()))
    }

    /// Returns the id of the store, which becomes `id` if it had none.
    pub(crate) async fn id_or(&self, id: StoreId) -> Result<StoreId, CasError> {
        let key = self.id_key();
        let content = PutPayload::from(id.to_string());
        match self.store.put_opts(&key, content, PutMode::Create.into()).await {
            Ok(_) => Ok(id),
            Err(error @ object_store::Error::AlreadyExists { .. }) => {
                let there = self.id().await?;
                there.ok_or_else(|| Self::failed("reading the id in", &key)(error))
            }
            Err(error) => Err(Self::failed("writing", &key)(error)),
        }
    }

    fn failed(what: &'static str, key: &Key) -> impl Fn(object_store::Error) -> CasError {
        move |source| CasError::Backing { what, key: key.to_string(), source }
    }

    /// Looks up blobs. Returns those that the object store has, and those that it does not have.
    pub(crate) async fn look_up_many(
        &self,
        digests: Vec<BlobDigest>,
    ) -> Result<(Vec<BlobDigest>, Vec<BlobDigest>), CasError> {
        let looked: Vec<(BlobDigest, bool)> = stream::iter(digests)
            .map(|digest| async move { Ok::<_, CasError>((digest, self.has(&Entry::blob(digest)).await?)) })
            .buffered(LOOK_UPS)
            .try_collect()
            .await?;
        let (there, absent): (Vec<_>, Vec<_>) = looked.into_iter().partition(|(_, there)| *there);
        let digests =
            |looked: Vec<(BlobDigest, bool)>| looked.into_iter().map(|(digest, _)| digest).collect();
        Ok((digests(there), digests(absent)))
    }

    /// Whether the object exists; if so and if it is old, it is renewed in the background.
    async fn has(&self, entry: &Entry) -> Result<bool, CasError> {
        let found = self.look_up(entry).await?;
        if let Some(meta) = &found {
            self.renew_if_old(meta);
        }
        Ok(found.is_some())
    }

    async fn look_up(&self, entry: &Entry) -> Result<Option<ObjectMeta>, CasError> {
        let found = self.look_up_key(&self.key(entry)).await?;
        Ok(found.filter(|meta| entry.fits(meta.size)))
    }

    async fn look_up_key(&self, key: &Key) -> Result<Option<ObjectMeta>, CasError> {
        match self.store.head(key).await {
            Ok(meta) => Ok(Some(meta)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(Self::failed("looking up", key)(error)),
        }
    }

    /// Looks up the marks that a zone has blobs. Returns the blobs with a mark, and those without.
    pub(crate) async fn look_up_marks(
        &self,
        zone: &Zone,
        blobs: Vec<BlobDigest>,
    ) -> Result<(Vec<BlobDigest>, Vec<BlobDigest>), CasError> {
        let looked: Vec<(BlobDigest, Option<ObjectMeta>)> = stream::iter(blobs)
            .map(|blob| async move {
                Ok::<_, CasError>((blob, self.look_up_key(&self.place(&mark_place(zone, &blob))).await?))
            })
            .buffered(LOOK_UPS)
            .try_collect()
            .await?;
        let (mut there, mut absent) = (Vec::new(), Vec::new());
        for (blob, meta) in looked {
            match meta {
                Some(meta) => {
                    self.renew_if_old(&meta);
                    there.push(blob);
                }
                None => absent.push(blob),
            }
        }
        Ok((there, absent))
    }

    /// Makes the mark that a zone has a blob.
    pub(crate) async fn put_mark(&self, zone: &Zone, blob: &BlobDigest) -> Result<(), CasError> {
        let key = self.place(&mark_place(zone, blob));
        self.store.put(&key, PutPayload::new()).await.map(drop).map_err(Self::failed("writing", &key))
    }

    /// Starts to renew an object in the second half of its retention, unless that was started already.
    fn renew_if_old(&self, meta: &ObjectMeta) {
        if age_of(meta) <= self.retention / LOOK_UP_SHARE
            || !self.renewing.lock().insert(meta.location.clone())
        {
            return;
        }
        let (store, renewing, key) =
            (self.renewals.clone(), Arc::clone(&self.renewing), meta.location.clone());
        tokio::spawn(async move {
            if let Err(error) = store.renew(&key).await {
                tracing::warn!(%key, error = &error as &dyn std::error::Error, "cannot renew an object");
            }
            renewing.lock().remove(&key);
        });
    }

    /// Keeps each blob at least until its time. Returns those that do not exist.
    pub(crate) async fn keep(
        &self,
        named: Vec<(BlobDigest, SystemTime)>,
        retention: Duration,
    ) -> Result<Vec<BlobDigest>, CasError> {
        let looked: Vec<(BlobDigest, bool)> = stream::iter(named)
            .map(|(digest, until)| async move {
                Ok::<_, CasError>((digest, self.keep_one(&digest, until, retention).await?))
            })
            .buffered(LOOK_UPS)
            .try_collect()
            .await?;
        Ok(looked.into_iter().filter_map(|(digest, there)| (!there).then_some(digest)).collect())
    }

    async fn keep_one(
        &self,
        digest: &BlobDigest,
        until: SystemTime,
        retention: Duration,
    ) -> Result<bool, CasError> {
        if is_empty(digest) {
            return Ok(true);
        }
        let Some(meta) = self.look_up(&Entry::blob(*digest)).await? else { return Ok(false) };
        if SystemTime::from(meta.last_modified) + deleted_after(retention) >= until {
            return Ok(true);
        }
        let renewed = self.renewals.renew(&meta.location).await;
        renewed.map_err(Self::failed("renewing", &meta.location))
    }

    /// Deletes the objects that were neither written nor renewed within the retention. Returns their number.
    ///
    /// An object that is used for the first time after the retention, between its last check here and its deletion,
    /// is lost to that use, which then finds it missing.
    pub(crate) async fn sweep(&self, retention: Duration) -> Result<u64, CasError> {
        let most = deleted_after(retention);
        let mut deleted = 0;
        for folder in Kind::ALL.map(Kind::folder).into_iter().chain([ZONES]) {
            let folder: Key = self.prefix.parts().chain([PathPart::from(folder)]).collect();
            let mut objects = self.store.list(Some(&folder));
            while let Some(meta) = objects.next().await {
                let meta = meta.map_err(Self::failed("listing", &folder))?;
                if age_of(&meta) <= most {
                    continue;
                }
                let key = &meta.location;
                let still = self.store.head(key).await.is_ok_and(|meta| age_of(&meta) > most);
                if still {
                    match self.store.delete(key).await {
                        // Another service may have deleted it.
                        Ok(()) | Err(object_store::Error::NotFound { .. }) => deleted += 1,
                        Err(error) => return Err(Self::failed("deleting", key)(error)),
                    }
                }
            }
        }
        Ok(deleted)
    }

    /// The entries of a kind whose hash begins with these digits.
    pub(crate) async fn entries(
        &self,
        kind: Kind,
        function: DigestFunction,
        shard: u8,
    ) -> Result<Vec<Entry>, CasError> {
        let shard = format!("{shard:02x}");
        let names = [kind.folder(), function.as_str(), shard.as_str()];
        let folder: Key = self.prefix.parts().chain(names.map(PathPart::from)).collect();
        let mut objects = self.store.list(Some(&folder));
        let mut entries = Vec::new();
        while let Some(meta) = objects.next().await {
            let meta = meta.map_err(Self::failed("listing", &folder))?;
            entries.extend(meta.location.filename().and_then(|name| Entry::parse(kind, function, name)));
        }
        Ok(entries)
    }

    /// Looks for the blob with this hash.
    pub(crate) async fn find(
        &self,
        function: DigestFunction,
        hash: &str,
    ) -> Result<Option<BlobDigest>, CasError> {
        let shard = hash.get(..2).present("the first two digits of a digest");
        let names = [Kind::Blob.folder(), function.as_str(), shard];
        let folder: Key = self.prefix.parts().chain(names.map(PathPart::from)).collect();
        // Object stores list whole folders; the offset skips what comes before.
        let offset = Key::from(format!("{folder}/{hash}"));
        let mut objects = self.store.list_with_offset(Some(&folder), &offset);
        while let Some(meta) = objects.next().await {
            let meta = meta.map_err(Self::failed("listing", &folder))?;
            let name = meta.location.filename().unwrap_or_default();
            let entry = Entry::parse(Kind::Blob, function, name).filter(|entry| entry.fits(meta.size));
            if let Some(entry) = entry.filter(|_| name.starts_with(hash)) {
                return Ok(Some(entry.digest));
            }
        }
        Ok(None)
    }

    pub(crate) async fn put(&self, entry: &Entry, content: Bytes) -> Result<(), CasError> {
        let key = self.key(entry);
        let stored = self.store.put(&key, PutPayload::from_bytes(content)).await;
        stored.map(drop).map_err(Self::failed("writing", &key))
    }

    /// Uploads a file, and reports its progress to `progress`.
    pub(crate) async fn put_file(
        &self,
        entry: &Entry,
        path: &Path,
        progress: &PutProgress,
    ) -> Result<(), CasError> {
        let key = self.key(entry);
        let unreadable = |source: io::Error| CasError::disk("reading", path, source);
        let opened = path.to_owned();
        let opened = spawn_blocking(move || File::open(opened)).await.map_err(|_| CasError::Stopping)?;
        let mut file = opened.map_err(unreadable)?;
        let mut upload = None;
        loop {
            let (back, part) = next_part(file).await?;
            file = back;
            let part = part.map_err(unreadable)?;
            let last = part.len() < PART_BYTES;
            let bytes = part.len() as u64;
            if last && upload.is_none() {
                self.put(entry, part.into()).await?;
                progress.add_bytes(bytes);
                return Ok(());
            }
            let writer = match &mut upload {
                Some(writer) => writer,
                none => {
                    let parts =
                        self.store.put_multipart(&key).await.map_err(Self::failed("writing", &key))?;
                    none.insert(WriteMultipart::new_with_chunk_size(parts, PART_BYTES))
                }
            };
            writer.wait_for_capacity(PARTS).await.map_err(Self::failed("writing", &key))?;
            writer.put(part.into());
            progress.add_bytes(bytes);
            if last {
                break;
            }
        }
        tracing::debug!(key = %key, size = entry.digest.size, "uploaded a file in parts");
        let Some(writer) = upload else {
            impossible!("{key} was uploaded in parts without an upload");
            return Ok(());
        };
        writer.finish().await.map(drop).map_err(Self::failed("writing", &key))
    }

    /// Opens an object from `start`; `None` if it does not exist.
    async fn get(&self, entry: &Entry, start: u64) -> Result<Option<GetResult>, CasError> {
        let key = self.key(entry);
        let range = (start > 0).then_some(object_store::GetRange::Offset(start));
        match self.store.get_opts(&key, GetOptions { range, ..GetOptions::default() }).await {
            Ok(found) => {
                // Its copy here will prove for half of the retention that it exists.
                self.renew_if_old(&found.meta);
                Ok(Some(found))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(Self::failed("reading", &key)(error)),
        }
    }

    /// Streams an object from `start`; `None` if it does not exist.
    pub(crate) async fn open_at(&self, entry: &Entry, start: u64) -> Result<Option<BlobStream>, CasError> {
        let Some(found) = self.get(entry, start).await? else { return Ok(None) };
        let key = found.meta.location.clone();
        let pieces = found.into_stream().map_err(move |source| Self::failed("reading", &key)(source));
        Ok(Some(pieces.boxed()))
    }

    /// Reads a whole object of at most `max` bytes.
    pub(crate) async fn get_whole(&self, entry: &Entry, max: u64) -> Result<Option<Bytes>, CasError> {
        let Some(found) = self.get(entry, 0).await? else { return Ok(None) };
        if found.meta.size > max {
            return Err(CasError::TooLargeAtOnce { digest: entry.digest, max });
        }
        found.bytes().await.map(Some).map_err(Self::failed("reading", &self.key(entry)))
    }

    pub(crate) async fn remove(&self, entry: &Entry) -> Result<bool, CasError> {
        let key = self.key(entry);
        match self.store.delete(&key).await {
            Ok(()) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(Self::failed("removing", &key)(error)),
        }
    }
}

/// Time since an object was written.
fn age_of(meta: &ObjectMeta) -> Duration {
    SystemTime::now().duration_since(meta.last_modified.into()).unwrap_or_default()
}

async fn next_part(file: File) -> Result<(File, io::Result<Vec<u8>>), CasError> {
    let read = spawn_blocking(move || {
        let part = read_some(&file, PART_BYTES as u64);
        (file, part)
    });
    read.await.map_err(|_| CasError::Stopping)
}
