//! Splits blobs into chunks and splices them from chunks.

use std::fs::File;

use bytes::Bytes;
use fastcdc::v2020::{Normalization, StreamCDC};
use futures::StreamExt as _;
use model::{BlobDigest, DigestFunction};
use prost::Message as _;
use reapi::execution::{SplitBlobResponse, chunking_function::Value};
use tokio::{sync::mpsc, task::spawn_blocking};

use crate::{Cas, CasError, empty_blob::is_empty, layout::Entry};

/// Mean size of a chunk in bytes, advertised in the capabilities.
pub const FAST_CDC_AVERAGE_BYTES: u64 = 512 << 10;
/// Seed of the chunker, advertised in the capabilities.
pub const FAST_CDC_SEED: u32 = 0;

const AVERAGE: usize = 512 << 10;
/// Maximum number of chunks that wait to be stored.
const CHUNKS_AHEAD: usize = 2;

/// The function that split a blob into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkingFunction {
    /// The client did not name a function.
    Unknown,
    /// `FastCDC` of 2020 with normalization level 2.
    FastCdc2020,
    RepMaxCdc,
}

impl ChunkingFunction {
    /// Converts the protocol's value; an unknown one becomes [`ChunkingFunction::Unknown`].
    pub fn from_proto(value: i32) -> Self {
        match Value::try_from(value) {
            Ok(Value::FastCdc2020) => Self::FastCdc2020,
            Ok(Value::RepMaxCdc) => Self::RepMaxCdc,
            Ok(Value::Unknown) | Err(_) => Self::Unknown,
        }
    }

    /// Converts to the protocol's value.
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
    /// The chunks, in the order of their content.
    pub chunks: Vec<BlobDigest>,
    pub function: ChunkingFunction,
}

impl Cas {
    /// Returns the chunks of a blob. All of them are stored, and kept for another
    /// [`CasConfig::keep`](crate::CasConfig::keep) like the blob. `None` if the store does not have the blob.
    ///
    /// An earlier split is reused, including one recorded by [`Cas::splice`]. A blob smaller than four average chunks
    /// is not split: it is its own only chunk.
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

    /// Splices a blob from its chunks, verifies and stores it, and records the chunks.
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
        // A blob that is already present is spliced as well: the chunks are trusted only if they produce it.
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

    /// Returns the recorded split, if all its chunks are present.
    async fn known_split(&self, digest: &BlobDigest) -> Result<Option<Split>, CasError> {
        let entry = Entry::split(self.zone(), *digest);
        let mut content = self.run_blocking(move |local| local.touch_record(&entry)).await?;
        if content.is_none() && self.fetch_record(&entry).await? {
            content = self.run_blocking(move |local| local.touch_record(&entry)).await?;
        }
        let Some(split) = content.and_then(|content| decode(&content, digest.function)) else {
            return Ok(None);
        };
        Ok(self.missing(&split.chunks).await?.is_empty().then_some(split))
    }

    async fn remember_split(&self, digest: &BlobDigest, split: &Split) -> Result<(), CasError> {
        let chunk_digests = split.chunks.iter().map(reapi::digest::to_proto).collect();
        let record = SplitBlobResponse { chunk_digests, chunking_function: split.function.to_proto() };
        self.put_record(Entry::split(self.zone(), *digest), &record.encode_to_vec()).await
    }

    /// Splits a file and stores the chunks; `None` if its content does not match `digest`, in which
    /// case the blob is removed.
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
        let found = found.map_err(|source| self.local().unreadable(&entry, source))?;
        if found == *digest {
            return Ok(Some(chunks));
        }
        self.verify(digest).await?;
        Ok(None)
    }
}

/// Splits a file and returns its digest. Stops when the receiver of the chunks is gone.
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
