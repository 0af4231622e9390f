//! An object store behind the local tier.

use std::{fs::File, io, path::Path, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use invariant::impossible;
use model::{BlobDigest, StoreId};
use object_store::{
    GetOptions, GetResult, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload, WriteMultipart,
    path::{Path as Key, PathPart},
};
use tokio::task::spawn_blocking;

use crate::{
    CasError,
    known::{Known, LastUse},
    layout::{Entry, ID_NAME},
    pieces::{BlobStream, read_some},
};

/// Maximum number of concurrent look-ups.
const LOOK_UPS: usize = 32;
/// Part size in bytes: larger files are uploaded in parts of this size.
const PART_BYTES: usize = 8 << 20;
/// Maximum number of parts of one file in flight.
const PARTS: usize = 2;

/// An object store that has every blob that counts as stored.
#[derive(Debug)]
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Key,
}

impl Objects {
    /// Opens the store at `url`. Reads credentials from the environment, in the variables of the cloud's own tools.
    pub(crate) fn open(url: &str) -> Result<Self, CasError> {
        let unsupported = |why: String| CasError::Unsupported { url: url.to_owned(), why };
        // Only the first call in the process has an effect.
        #[cfg(feature = "cloud")]
        let _ = rustls::crypto::ring::default_provider().install_default();
        let parsed = url::Url::parse(url).map_err(|error| unsupported(error.to_string()))?;
        let cloud = |name: &str| ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|prefix| name.starts_with(prefix));
        let options = std::env::vars().filter(|(name, _)| cloud(name));
        let (store, prefix) =
            object_store::parse_url_opts(&parsed, options).map_err(|error| unsupported(error.to_string()))?;
        Ok(Self { store: store.into(), prefix })
    }

    fn key(&self, entry: &Entry) -> Key {
        let mut key = self.prefix.to_string();
        if !key.is_empty() {
            key.push('/');
        }
        key.push_str(&entry.relative_path());
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

    /// Returns those of `digests` that the object store does not have.
    pub(crate) async fn absent(
        &self,
        digests: Vec<BlobDigest>,
        known: &Known,
    ) -> Result<Vec<BlobDigest>, CasError> {
        let at = known.now();
        let looked: Vec<(BlobDigest, bool)> = stream::iter(digests)
            .map(|digest| async move { Ok::<_, CasError>((digest, self.has(&Entry::blob(digest)).await?)) })
            .buffered(LOOK_UPS)
            .try_collect()
            .await?;
        let (there, absent): (Vec<_>, Vec<_>) = looked.into_iter().partition(|(_, there)| *there);
        for (digest, _) in there {
            known.note(&digest, LastUse { at, local: false, twin: false });
        }
        Ok(absent.into_iter().map(|(digest, _)| digest).collect())
    }

    async fn has(&self, entry: &Entry) -> Result<bool, CasError> {
        let key = self.key(entry);
        match self.store.head(&key).await {
            Ok(meta) => Ok(entry.fits(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(Self::failed("looking up", &key)(error)),
        }
    }

    pub(crate) async fn put(&self, entry: &Entry, content: Bytes) -> Result<(), CasError> {
        let key = self.key(entry);
        let stored = self.store.put(&key, PutPayload::from_bytes(content)).await;
        stored.map(drop).map_err(Self::failed("writing", &key))
    }

    /// Uploads a file of `size` bytes.
    pub(crate) async fn put_file(&self, entry: &Entry, path: &Path, size: u64) -> Result<(), CasError> {
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
            if last && upload.is_none() {
                return self.put(entry, part.into()).await;
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
            if last {
                break;
            }
        }
        tracing::debug!(key = %key, size, "uploaded a file in parts");
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
            Ok(found) => Ok(Some(found)),
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

async fn next_part(file: File) -> Result<(File, io::Result<Vec<u8>>), CasError> {
    let read = spawn_blocking(move || {
        let part = read_some(&file, PART_BYTES as u64);
        (file, part)
    });
    read.await.map_err(|_| CasError::Stopping)
}
