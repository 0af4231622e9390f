//! Blobs by digest, in an object store: local disk by default.

use std::{io, path::Path, sync::Arc};

use bytes::Bytes;
use disk::{Reserve, Space};
use futures::{StreamExt as _, stream::BoxStream};
use hashing::{CopyError, copy_stream, hash_file_async};
use invariant::Present as _;
use model::{Digest, DigestFunction, StoreId};
use object_store::{
    ObjectStore, ObjectStoreExt as _, PutMode, PutPayload, WriteMultipart, local::LocalFileSystem,
    path::Path as Key,
};
use tokio::io::AsyncReadExt as _;

/// Error of the blob store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No built-in store supports the URL.
    #[error("unsupported store URL {url:?}: expected file:///PATH")]
    Unsupported { url: String },
    #[error("cannot create the store folder {path}")]
    Folder {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("the store has no blob {digest}")]
    Missing { digest: Digest },
    #[error("blob store: {what} failed")]
    Failed {
        what: String,
        #[source]
        source: object_store::Error,
    },
    #[error(
        "the store's disk has {left} bytes free and must keep {reserve} free (disk_left_percent): free some space, or \
         move the store"
    )]
    NoRoom {
        /// Free bytes of the disk.
        left: u64,
        /// Bytes that must stay free.
        reserve: u64,
    },
    #[error("cannot read file {path}")]
    File {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot write file {path}")]
    Write {
        path: String,
        #[source]
        source: io::Error,
    },
    /// The blob is larger than the caller accepts.
    #[error("blob {digest} has {size} bytes, the limit is {most}")]
    TooLarge {
        digest: Digest,
        /// Size of the blob in bytes.
        size: u64,
        /// Maximum size in bytes that the caller accepts.
        most: u64,
    },
    #[error("blob {wanted} is damaged: its content has digest {found}")]
    Damaged { wanted: Digest, found: Digest },
}

impl StoreError {
    /// Whether the cause is a full disk.
    pub fn is_disk_full(&self) -> bool {
        if matches!(self, Self::NoRoom { .. }) {
            return true;
        }
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::StorageFull) {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

/// An object store that holds blobs by digest.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    url: String,
    reserve: Reserve,
}

const PART_BYTES: usize = 1 << 20;
/// Hash function of all blobs.
const FUNCTION: DigestFunction = DigestFunction::Sha256;
/// Name of the object that contains the store's id.
const ID_NAME: &str = "store-id";

impl Store {
    /// Opens the store at `url` and creates its folder if it is missing.
    pub fn open(url: &str) -> Result<Self, StoreError> {
        let path = url.strip_prefix("file://").filter(|path| path.starts_with('/'));
        let path = path.ok_or_else(|| StoreError::Unsupported { url: url.to_owned() })?;
        std::fs::create_dir_all(path)
            .map_err(|source| StoreError::Folder { path: path.to_owned(), source })?;
        let inner = LocalFileSystem::new_with_prefix(path)
            .map_err(|source| StoreError::Failed { what: format!("folder {path}"), source })?;
        Ok(Self { inner: Arc::new(inner), url: url.to_owned(), reserve: Reserve::new(0) })
    }

    /// Reserves `percent` of its disk for other uses: the store never writes into half of that reserve.
    #[must_use]
    pub fn leaving(mut self, percent: u8) -> Self {
        self.reserve = Reserve::new(percent);
        self
    }

    /// Checks that the disk keeps its reserve after `length` more bytes.
    fn check_room(&self, length: u64) -> Result<(), StoreError> {
        let folder = self.url.strip_prefix("file://").present("the folder of an open store");
        // If the disk cannot be inspected, the write itself will fail.
        let Ok(space) = Space::of(Path::new(folder)) else { return Ok(()) };
        let reserve = self.reserve.for_stores(space.bytes);
        if space.bytes_left.saturating_sub(length) < reserve {
            return Err(StoreError::NoRoom { left: space.bytes_left, reserve });
        }
        Ok(())
    }

    /// The URL of a store in the folder `path`.
    pub fn url_of(path: &Path) -> String {
        format!("file://{}", path.display())
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether a store exists at `url`. Check this before opening, which creates what is missing.
    pub fn is_there(url: &str) -> bool {
        url.strip_prefix("file://").is_none_or(|path| Path::new(path).is_dir())
    }

    /// The id of the store; none if it has none yet.
    pub async fn id(&self) -> Result<Option<StoreId>, StoreError> {
        let found = match self.inner.get(&Key::from(ID_NAME)).await {
            Ok(found) => found.bytes().await.map_err(failed("read"))?,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(source) => return Err(failed("read")(source)),
        };
        Ok(std::str::from_utf8(&found).ok().and_then(|text| text.parse().ok()))
    }

    /// The id of the store, after setting it to `id` if it had none.
    pub async fn id_or(&self, id: StoreId) -> Result<StoreId, StoreError> {
        let content = PutPayload::from(id.to_string());
        match self.inner.put_opts(&Key::from(ID_NAME), content, PutMode::Create.into()).await {
            Ok(_) => Ok(id),
            Err(error @ object_store::Error::AlreadyExists { .. }) => {
                self.id().await?.ok_or_else(|| failed("reading the id")(error))
            }
            Err(source) => Err(failed("write")(source)),
        }
    }

    /// Stores `content` and returns its digest.
    pub async fn put(&self, content: Bytes) -> Result<Digest, StoreError> {
        self.check_room(content.len() as u64)?;
        let digest = Digest::of(&content);
        let payload = PutPayload::from_bytes(content);
        self.inner.put(&key(&digest), payload).await.map_err(failed("write"))?;
        Ok(digest)
    }

    /// Stores the file at `path`; returns its digest and length.
    ///
    /// The file is read twice, first for the digest: a blob is written under its final name from its first byte.
    pub async fn put_file(&self, path: &Path) -> Result<(Digest, u64), StoreError> {
        let unreadable = |source| StoreError::File { path: path.display().to_string(), source };
        let blob = hash_file_async(path, FUNCTION).await.map_err(unreadable)?;
        let (digest, length) = (Digest::from_sha256(blob.hash), blob.size);
        if self.inner.head(&key(&digest)).await.is_ok() {
            return Ok((digest, length));
        }
        self.check_room(length)?;
        let upload = self.inner.put_multipart(&key(&digest)).await.map_err(failed("write"))?;
        let mut writer = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let mut file = tokio::fs::File::open(path).await.map_err(unreadable)?;
        let mut written = FUNCTION.hasher();
        let mut buffer = vec![0_u8; PART_BYTES];
        loop {
            let read = file.read(&mut buffer).await.map_err(unreadable)?;
            if read == 0 {
                break;
            }
            let part = buffer.get(..read).present("the bytes of a buffer that were read");
            written.update(part);
            writer.wait_for_capacity(4).await.map_err(failed("write"))?;
            writer.write(part);
        }
        let found = Digest::from_sha256(written.finish().hash);
        if found != digest {
            // The parts never become a blob; the damage is the error to report.
            let _ = writer.abort().await;
            return Err(StoreError::Damaged { wanted: digest, found });
        }
        writer.finish().await.map_err(failed("write"))?;
        Ok((digest, length))
    }

    /// The content of a blob in pieces, unverified.
    pub async fn stream(
        &self,
        digest: &Digest,
    ) -> Result<(u64, BoxStream<'static, Result<Bytes, StoreError>>), StoreError> {
        let found = match self.inner.get(&key(digest)).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => {
                return Err(StoreError::Missing { digest: digest.clone() });
            }
            Err(source) => return Err(failed("read")(source)),
        };
        let length = found.meta.size;
        Ok((length, found.into_stream().map(|part| part.map_err(failed("read"))).boxed()))
    }

    /// The size of a blob in bytes.
    pub async fn size(&self, digest: &Digest) -> Result<u64, StoreError> {
        match self.inner.head(&key(digest)).await {
            Ok(meta) => Ok(meta.size),
            Err(object_store::Error::NotFound { .. }) => Err(StoreError::Missing { digest: digest.clone() }),
            Err(source) => Err(failed("read")(source)),
        }
    }

    /// The content of a blob of at most `most` bytes, verified.
    pub async fn read(&self, digest: &Digest, most: u64) -> Result<Bytes, StoreError> {
        let (size, mut parts) = self.stream(digest).await?;
        if size > most {
            return Err(StoreError::TooLarge { digest: digest.clone(), size, most });
        }
        let mut content = Vec::new();
        while let Some(part) = parts.next().await {
            content.extend_from_slice(&part?);
        }
        let found = Digest::of(&content);
        if found != *digest {
            return Err(StoreError::Damaged { wanted: digest.clone(), found });
        }
        Ok(content.into())
    }

    /// Writes a blob to `destination`, verified. A failure leaves no file.
    pub async fn fetch(&self, digest: &Digest, destination: &Path) -> Result<u64, StoreError> {
        let partial = destination.with_file_name(format!(".forebay-{}.partial", uuid::Uuid::new_v4()));
        let fetched = self.fetch_by(&partial, digest, destination).await;
        if fetched.is_err() {
            // It may not exist; the error to report is the first one.
            let _ = tokio::fs::remove_file(&partial).await;
        }
        fetched
    }

    /// Writes a blob to `partial`, which becomes `destination` if it is complete.
    async fn fetch_by(&self, partial: &Path, digest: &Digest, destination: &Path) -> Result<u64, StoreError> {
        let unwritable = |source| StoreError::Write { path: destination.display().to_string(), source };
        let (length, parts) = self.stream(digest).await?;
        let mut file = tokio::fs::File::create(partial).await.map_err(unwritable)?;
        let copied = copy_stream(parts, &mut file, FUNCTION.hasher()).await;
        let found = copied.map_err(|error| match error {
            CopyError::Read(error) => error,
            CopyError::Write(source) => unwritable(source),
        })?;
        let found = Digest::from_sha256(found.hash);
        if found != *digest {
            return Err(StoreError::Damaged { wanted: digest.clone(), found });
        }
        tokio::fs::rename(partial, destination).await.map_err(unwritable)?;
        Ok(length)
    }
}

fn failed(what: &'static str) -> impl Fn(object_store::Error) -> StoreError {
    move |source| StoreError::Failed { what: what.to_owned(), source }
}

/// Key of a blob; the first two hex digits are a folder, which keeps folders small.
fn key(digest: &Digest) -> Key {
    let hex = digest.hex();
    Key::from(format!("sha256/{}/{hex}", hex.get(..2).present("the first two digits of a digest")))
}

#[cfg(test)]
mod tests;
