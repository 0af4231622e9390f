//! Blobs cut into chunks, and put together again.

use std::fs::File;

use bytes::Bytes;
use fastcdc::v2020::{Normalization, StreamCDC};
use futures::StreamExt as _;
use model::{BlobDigest, DigestFunction};
use prost::Message as _;
use reapi::execution::{SplitBlobResponse, chunking_function::Value};
use tokio::{sync::mpsc, task::spawn_blocking};

use crate::{Cas, CasError, layout::Entry, store::is_empty};

/// The mean size of a chunk, to be advertised in the capabilities.
pub const FAST_CDC_AVERAGE_BYTES: u64 = 512 << 10;
/// The seed of the chunker, to be advertised in the capabilities.
pub const FAST_CDC_SEED: u32 = 0;

const AVERAGE: usize = 512 << 10;
/// So many chunks wait to be stored.
const CHUNKS_AHEAD: usize = 2;

/// By which function a blob was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkingFunction {
    /// One that the client did not name.
    Unknown,
    /// `FastCDC` of 2020, normalization level 2.
    FastCdc2020,
    /// `RepMaxCDC`.
    RepMaxCdc,
}

impl ChunkingFunction {
    /// As the protocol has it; what is not known is [`ChunkingFunction::Unknown`].
    pub fn from_proto(value: i32) -> Self {
        match Value::try_from(value) {
            Ok(Value::FastCdc2020) => Self::FastCdc2020,
            Ok(Value::RepMaxCdc) => Self::RepMaxCdc,
            Ok(Value::Unknown) | Err(_) => Self::Unknown,
        }
    }

    /// As the protocol has it.
    pub fn to_proto(self) -> i32 {
        let value = match self {
            Self::Unknown => Value::Unknown,
            Self::FastCdc2020 => Value::FastCdc2020,
            Self::RepMaxCdc => Value::RepMaxCdc,
        };
        value.into()
    }
}

/// The chunks of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// In order.
    pub chunks: Vec<BlobDigest>,
    /// How it was cut.
    pub function: ChunkingFunction,
}

impl Cas {
    /// The chunks of a blob; all of them are stored, and kept for another
    /// [`CasConfig::keep`](crate::CasConfig::keep) as the blob is. None: the blob is not there.
    ///
    /// An earlier split is found again, also one made known by [`Cas::splice`]. What is smaller than four average
    /// chunks is not cut: it is its own only chunk.
    pub async fn split(&self, digest: &BlobDigest) -> Result<Option<Split>, CasError> {
        let function = ChunkingFunction::FastCdc2020;
        if is_empty(digest) {
            return Ok(Some(Split { chunks: Vec::new(), function }));
        }
        if !self.contains(digest).await? {
            return Ok(None);
        }
        if digest.size < 4 * FAST_CDC_AVERAGE_BYTES {
            return Ok(Some(Split { chunks: vec![*digest], function }));
        }
        if let Some(split) = self.known_split(digest).await? {
            return Ok(Some(split));
        }
        let Some(path) = self.local_path(digest, false).await? else { return Ok(None) };
        let file = spawn_blocking(move || File::open(&path).map_err(|e| CasError::disk("opening", &path, e)));
        let Some(chunks) = self.cut(digest, file.await.map_err(|_| CasError::Stopping)??).await? else {
            return Ok(None);
        };
        let split = Split { chunks, function };
        self.remember_split(digest, &split).await?;
        Ok(Some(split))
    }

    /// Puts a blob together of its chunks, verifies and stores it, and remembers the chunks.
    pub async fn splice(
        &self,
        digest: &BlobDigest,
        chunks: &[BlobDigest],
        function: ChunkingFunction,
    ) -> Result<(), CasError> {
        if let Some(chunk) = chunks.iter().find(|chunk| chunk.function != digest.function) {
            return Err(CasError::MixedFunctions { digest: *digest, chunk: *chunk });
        }
        if let Some(missing) = self.missing(chunks).await?.first() {
            return Err(CasError::Missing { digest: *missing });
        }
        // A blob that is there already is put together as well: its chunks are believed only when they are it.
        let mut writer = self.writer(*digest).await?;
        for chunk in chunks {
            let mut pieces = self.read(chunk, 0, None).await?.ok_or(CasError::Missing { digest: *chunk })?;
            while let Some(piece) = pieces.next().await {
                writer.write(piece?).await?;
            }
        }
        writer.finish().await?;
        if chunks.is_empty() || chunks == [*digest] {
            return Ok(());
        }
        self.remember_split(digest, &Split { chunks: chunks.to_vec(), function }).await
    }

    /// The split that is remembered, if all its chunks are there.
    async fn known_split(&self, digest: &BlobDigest) -> Result<Option<Split>, CasError> {
        let entry = Entry::split(*digest);
        let mut content = self.hop(move |inner| inner.load_split(&entry)).await?;
        if content.is_none() && self.fetch_record(&entry).await? {
            content = self.hop(move |inner| inner.load_split(&entry)).await?;
        }
        let Some(split) = content.and_then(|content| decode(&content, digest.function)) else {
            return Ok(None);
        };
        Ok(self.missing(&split.chunks).await?.is_empty().then_some(split))
    }

    async fn remember_split(&self, digest: &BlobDigest, split: &Split) -> Result<(), CasError> {
        let chunk_digests = split.chunks.iter().map(reapi::digest::to_proto).collect();
        let record = SplitBlobResponse { chunk_digests, chunking_function: split.function.to_proto() };
        self.put_record(Entry::split(*digest), &record.encode_to_vec()).await
    }

    /// Cuts a file and stores the chunks; none: its content is not that of `digest`, and it was removed.
    async fn cut(&self, digest: &BlobDigest, file: File) -> Result<Option<Vec<BlobDigest>>, CasError> {
        let (send, mut receive) = mpsc::channel(CHUNKS_AHEAD);
        let function = digest.function;
        let cutter = spawn_blocking(move || cut(function, file, &send));
        let mut chunks = Vec::new();
        while let Some((chunk, content)) = receive.recv().await {
            self.put(&chunk, content).await?;
            chunks.push(chunk);
        }
        let found = cutter.await.map_err(|_| CasError::Stopping)?;
        let entry = Entry::blob(*digest);
        let found = found.map_err(|source| self.inner.unreadable(&entry, source))?;
        if found == *digest {
            return Ok(Some(chunks));
        }
        self.verify(digest).await?;
        Ok(None)
    }
}

/// Cuts a file; the digest of all of it. Stops when nobody takes the chunks.
fn cut(
    function: DigestFunction,
    file: File,
    chunks: &mpsc::Sender<(BlobDigest, Bytes)>,
) -> std::io::Result<BlobDigest> {
    let level = Normalization::Level2;
    let seed = u64::from(FAST_CDC_SEED);
    let chunker = StreamCDC::with_level_and_seed(file, AVERAGE / 4, AVERAGE, AVERAGE * 4, level, seed);
    let mut whole = function.hasher();
    for chunk in chunker {
        let data = chunk.map_err(std::io::Error::from)?.data;
        whole.update(&data);
        if chunks.blocking_send((function.digest(&data), data.into())).is_err() {
            break;
        }
    }
    Ok(whole.finish())
}

fn decode(content: &[u8], function: DigestFunction) -> Option<Split> {
    let record = SplitBlobResponse::decode(content).ok()?;
    let chunks = record.chunk_digests.iter().map(|chunk| reapi::digest::from_proto(chunk, function));
    let chunks = chunks.collect::<Result<Vec<_>, _>>().ok()?;
    Some(Split { chunks, function: ChunkingFunction::from_proto(record.chunking_function) })
}

impl crate::store::Inner {
    fn load_split(&self, entry: &Entry) -> Result<Option<Vec<u8>>, CasError> {
        if !self.disk.touch(entry)? {
            return Ok(None);
        }
        Ok(self.read_record(entry, &self.disk.layout.path(entry))?.map(|(content, _)| content))
    }
}
