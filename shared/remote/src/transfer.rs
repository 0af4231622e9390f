//! Uploads and downloads of blobs.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use model::BlobDigest;
use reapi::{
    bytestream::ReadRequest,
    digest::{from_proto, to_proto},
    execution::{
        BatchReadBlobsRequest, BatchUpdateBlobsRequest, FindMissingBlobsRequest,
        batch_update_blobs_request::Request as BatchRequest, compressor,
    },
    stream::WriteRequest,
};
use tokio::{sync::mpsc, task::spawn_blocking};
use tonic::Code;

use crate::{Meter, Remote, RemoteError, resume::Pieces};

/// The source of a blob's content.
#[derive(Debug, Clone)]
pub enum Source {
    Bytes(Bytes),
    File(PathBuf),
}

/// Maximum number of digests in one `FindMissingBlobs` request.
const FIND: usize = 10_000;
/// Maximum bytes of one batch; larger blobs are streamed.
const BATCH: u64 = 3 << 20;
/// Maximum number of blobs in one batch.
const BATCH_COUNT: usize = 1000;
const PIECE: usize = 1 << 20;
/// Maximum number of pieces of a stream that are read ahead.
const AHEAD: usize = 4;
/// Maximum number of concurrent calls.
const IN_FLIGHT: usize = 4;

impl Remote {
    /// Returns those of `digests` that the server lacks.
    pub async fn missing(&self, digests: &[BlobDigest]) -> Result<Vec<BlobDigest>, RemoteError> {
        let mut missing = Vec::new();
        for part in digests.chunks(FIND) {
            let request = FindMissingBlobsRequest {
                instance_name: self.instance.clone(),
                blob_digests: part.iter().map(to_proto).collect(),
                digest_function: self.function_value(),
            };
            let what = "finding missing blobs";
            let answer = self.cas().find_missing_blobs(request).await.map_err(RemoteError::refused(what))?;
            for digest in &answer.into_inner().missing_blob_digests {
                let read = from_proto(digest, self.function);
                missing.push(
                    read.map_err(|error| RemoteError::Answer { what: what.into(), why: error.to_string() })?,
                );
            }
        }
        Ok(missing)
    }

    /// Uploads the blobs that the server lacks. Returns their number and bytes.
    pub async fn upload(&self, blobs: &HashMap<BlobDigest, Source>) -> Result<(u64, u64), RemoteError> {
        self.upload_with_progress(blobs, &Arc::default()).await
    }

    /// Like [`Remote::upload`], and reports its progress to `meter`.
    pub async fn upload_with_progress(
        &self,
        blobs: &HashMap<BlobDigest, Source>,
        meter: &Arc<Meter>,
    ) -> Result<(u64, u64), RemoteError> {
        let digests: Vec<BlobDigest> = blobs.keys().copied().collect();
        let missing = self.missing(&digests).await?;
        let bytes = missing.iter().map(|digest| digest.size).sum();
        self.send(blobs, &missing, meter).await?;
        Ok((missing.len() as u64, bytes))
    }

    /// Uploads all blobs, without asking first which ones the server lacks.
    pub async fn put_many(&self, blobs: &HashMap<BlobDigest, Source>) -> Result<(), RemoteError> {
        self.put_many_with_progress(blobs, &Arc::default()).await
    }

    /// Like [`Remote::put_many`], and reports its progress to `meter`.
    pub async fn put_many_with_progress(
        &self,
        blobs: &HashMap<BlobDigest, Source>,
        meter: &Arc<Meter>,
    ) -> Result<(), RemoteError> {
        let digests: Vec<BlobDigest> = blobs.keys().copied().collect();
        self.send(blobs, &digests, meter).await
    }

    async fn send(
        &self,
        blobs: &HashMap<BlobDigest, Source>,
        digests: &[BlobDigest],
        meter: &Arc<Meter>,
    ) -> Result<(), RemoteError> {
        meter.expect(digests.len() as u64, digests.iter().map(|digest| digest.size).sum());
        let (small, large): (Vec<_>, Vec<_>) = digests.iter().partition(|digest| is_small(digest));
        let source = |digest: &BlobDigest| {
            let missing = RemoteError::Missing { digest: *digest };
            blobs.get(digest).cloned().map(|source| (*digest, source)).ok_or(missing)
        };
        let batches =
            batches(&small).into_iter().map(|batch| batch.iter().map(source).collect::<Result<Vec<_>, _>>());
        let batches: Vec<_> = batches.collect::<Result<_, _>>()?;
        futures::stream::iter(batches.into_iter().map(|batch| self.upload_batch(batch, meter)))
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<()>()
            .await?;
        let large: Vec<_> = large.iter().map(source).collect::<Result<_, _>>()?;
        futures::stream::iter(large)
            .map(|(digest, source)| async move { self.write_with_meter(&digest, source, meter).await })
            .buffer_unordered(IN_FLIGHT)
            .try_collect()
            .await
    }

    async fn upload_batch(
        &self,
        batch: Vec<(BlobDigest, Source)>,
        meter: &Arc<Meter>,
    ) -> Result<(), RemoteError> {
        let (blobs, bytes) = (batch.len() as u64, batch.iter().map(|(digest, _)| digest.size).sum());
        let from_memory = batch.iter().all(|(_, source)| matches!(source, Source::Bytes(_)));
        // All files of a batch are read by one thread.
        let requests = if from_memory { read_all(batch)? } else { blocking(|| read_all(batch)).await? };
        let request = BatchUpdateBlobsRequest {
            instance_name: self.instance.clone(),
            requests,
            digest_function: self.function_value(),
        };
        let what = "uploading a batch of blobs";
        let answer = self.cas().batch_update_blobs(request).await.map_err(RemoteError::refused(what))?;
        for response in answer.into_inner().responses {
            let status = response.status.unwrap_or_default();
            if status.code != 0 {
                let refused = tonic::Status::new(Code::from(status.code), status.message);
                return Err(RemoteError::refused(what)(refused));
            }
        }
        meter.moved(blobs, bytes);
        Ok(())
    }

    pub async fn write(&self, digest: &BlobDigest, source: Source) -> Result<(), RemoteError> {
        self.write_with_meter(digest, source, &Arc::default()).await
    }

    async fn write_with_meter(
        &self,
        digest: &BlobDigest,
        source: Source,
        meter: &Arc<Meter>,
    ) -> Result<(), RemoteError> {
        let name = format!("{}uploads/{}/blobs/{digest}", self.prefix(), uuid::Uuid::new_v4());
        let size = digest.size;
        let (sender, receiver) = mpsc::channel::<WriteRequest>(AHEAD);
        let feeder = Feeder { sender, name, meter: Arc::clone(meter) };
        let feed = async move {
            match source {
                Source::Bytes(bytes) => {
                    feeder.send_bytes(bytes).await;
                    Ok(())
                }
                Source::File(path) => blocking(move || feeder.send_file(&path, size)).await,
            }
        };
        let mut client = self.bytes();
        let call = client.write(tokio_stream::wrappers::ReceiverStream::new(receiver));
        let (sent, written) = tokio::join!(feed, call);
        sent?;
        written.map_err(RemoteError::refused(format!("uploading {digest}")))?;
        meter.moved(1, 0);
        Ok(())
    }

    /// Reads small blobs, in the order of the request.
    pub async fn read_many(&self, digests: &[BlobDigest]) -> Result<Vec<Bytes>, RemoteError> {
        let mut contents = Vec::with_capacity(digests.len());
        for batch in batches(digests) {
            for (digest, content) in batch.iter().zip(self.read_batch(&batch).await?) {
                contents.push(content.ok_or(RemoteError::Missing { digest: *digest })?);
            }
        }
        Ok(contents)
    }

    /// Reads small blobs that fit one answer ([`batches`]), in the order of the request, unverified. `None`: the
    /// server does not have the blob.
    pub async fn read_batch(&self, digests: &[BlobDigest]) -> Result<Vec<Option<Bytes>>, RemoteError> {
        let request = BatchReadBlobsRequest {
            instance_name: self.instance.clone(),
            digests: digests.iter().map(to_proto).collect(),
            acceptable_compressors: Vec::new(),
            digest_function: self.function_value(),
        };
        let what = "reading a batch of blobs";
        let answer = self.cas().batch_read_blobs(request).await.map_err(RemoteError::refused(what))?;
        let mut found = HashMap::with_capacity(digests.len());
        for response in answer.into_inner().responses {
            let digest = response.digest.unwrap_or_default();
            let status = response.status.unwrap_or_default();
            let code = Code::from(status.code);
            if code != Code::Ok && code != Code::NotFound {
                return Err(RemoteError::refused(what)(tonic::Status::new(code, status.message)));
            }
            let content = (code == Code::Ok).then(|| Bytes::from(response.data));
            found.insert((digest.hash, digest.size_bytes), content);
        }
        let content_of = |digest: &BlobDigest| {
            let wanted = to_proto(digest);
            let unanswered =
                || RemoteError::Answer { what: what.into(), why: format!("no response for {digest}") };
            found.get(&(wanted.hash, wanted.size_bytes)).cloned().ok_or_else(unanswered)
        };
        digests.iter().map(content_of).collect()
    }

    /// Streams a blob from `offset`, unverified; `None` if the server does not have it.
    pub async fn open(
        &self,
        digest: &BlobDigest,
        offset: u64,
    ) -> Result<Option<BoxStream<'static, Result<Bytes, RemoteError>>>, RemoteError> {
        let what = format!("reading {digest}");
        let resource_name = format!("{}blobs/{digest}", self.prefix());
        let read_offset = i64::try_from(offset).unwrap_or(i64::MAX);
        let digest = *digest;
        let request = ReadRequest { resource_name, read_offset, read_limit: 0 };
        match self.bytes().read(request).await {
            Ok(answer) => {
                let pieces = answer.into_inner().map(move |piece| match piece {
                    Ok(piece) => Ok(piece.data),
                    // Some servers send the headers before they look for the blob.
                    Err(status) if status.code() == Code::NotFound => Err(RemoteError::Missing { digest }),
                    Err(status) => Err(RemoteError::refused(what.clone())(status)),
                });
                Ok(Some(pieces.boxed()))
            }
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(RemoteError::refused(what)(status)),
        }
    }

    /// Reads one blob of any size into memory.
    pub async fn read(&self, digest: &BlobDigest) -> Result<Vec<u8>, RemoteError> {
        let mut content = Vec::with_capacity(usize::try_from(digest.size).unwrap_or(0).min(1 << 30));
        self.read_to(digest, async |piece| {
            content.extend_from_slice(piece);
            Ok(())
        })
        .await?;
        Ok(content)
    }

    /// Passes the pieces of a blob to `consume` and verifies the whole at the end.
    pub async fn read_to(
        &self,
        digest: &BlobDigest,
        mut consume: impl AsyncFnMut(&[u8]) -> Result<(), RemoteError>,
    ) -> Result<(), RemoteError> {
        let mut hasher = digest.function.hasher();
        self.pieces(digest, async |piece| {
            hasher.update(piece);
            consume(piece).await
        })
        .await?;
        let found = hasher.finish();
        if found != *digest {
            let what = format!("reading {digest}");
            return Err(RemoteError::Answer { what, why: format!("its digest is {found}") });
        }
        Ok(())
    }

    /// Passes the pieces of a blob to `consume` as they arrive, unverified.
    pub async fn read_raw(
        &self,
        digest: &BlobDigest,
        mut consume: impl FnMut(&[u8]),
    ) -> Result<(), RemoteError> {
        self.pieces(digest, async |piece| {
            consume(piece);
            Ok(())
        })
        .await
    }

    async fn pieces(
        &self,
        digest: &BlobDigest,
        mut consume: impl AsyncFnMut(&[u8]) -> Result<(), RemoteError>,
    ) -> Result<(), RemoteError> {
        let mut pieces = Pieces::new(self, digest);
        while let Some(piece) = pieces.next().await? {
            consume(&piece).await?;
        }
        Ok(())
    }

    fn prefix(&self) -> String {
        if self.instance.is_empty() { String::new() } else { format!("{}/", self.instance) }
    }
}

fn read_all(batch: Vec<(BlobDigest, Source)>) -> Result<Vec<BatchRequest>, RemoteError> {
    let read = |(digest, source): (BlobDigest, Source)| {
        let data = match source {
            Source::Bytes(bytes) => bytes.into(),
            Source::File(path) => fs::read(&path).map_err(file_error(&path))?,
        };
        let compressor = compressor::Value::Identity.into();
        Ok(BatchRequest { digest: Some(to_proto(&digest)), data, compressor })
    };
    batch.into_iter().map(read).collect()
}

/// Runs `work` on a thread that may wait for the disk.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RemoteError> + Send + 'static,
) -> Result<T, RemoteError> {
    let interrupted = |error: tokio::task::JoinError| RemoteError::Answer {
        what: "reading or writing files".into(),
        why: error.to_string(),
    };
    spawn_blocking(work).await.map_err(interrupted)?
}

/// Sends a blob piece by piece.
struct Feeder {
    sender: mpsc::Sender<WriteRequest>,
    name: String,
    meter: Arc<Meter>,
}

impl Feeder {
    async fn send_bytes(&self, mut rest: Bytes) {
        let mut offset = 0;
        loop {
            let piece = rest.split_to(rest.len().min(PIECE));
            let length = piece.len() as u64;
            let request = request(&self.name, offset, piece, rest.is_empty());
            // Closed: the server has already answered.
            if self.sender.send(request).await.is_err() {
                return;
            }
            self.meter.moved(0, length);
            if rest.is_empty() {
                return;
            }
            offset += length;
        }
    }

    fn send_file(&self, path: &Path, size: u64) -> Result<(), RemoteError> {
        let mut input = File::open(path).map_err(file_error(path))?;
        let mut offset = 0;
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            let read =
                (&mut input).take(PIECE as u64).read_to_end(&mut piece).map_err(file_error(path))? as u64;
            let last = offset + read >= size || read == 0;
            // Closed: the server has already answered.
            if self.sender.blocking_send(request(&self.name, offset, piece.into(), last)).is_err() {
                return Ok(());
            }
            self.meter.moved(0, read);
            if last {
                return Ok(());
            }
            offset += read;
        }
    }
}

fn request(name: &str, offset: u64, data: Bytes, finish_write: bool) -> WriteRequest {
    WriteRequest {
        resource_name: if offset == 0 { name.to_owned() } else { String::new() },
        write_offset: i64::try_from(offset).unwrap_or(i64::MAX),
        finish_write,
        data,
    }
}

/// Whether a blob is sent in a batch with others, and not as a stream.
pub fn is_small(digest: &BlobDigest) -> bool {
    digest.size <= BATCH / 8
}

/// Groups digests into batches that each fit one call.
pub fn batches(digests: &[BlobDigest]) -> Vec<Vec<BlobDigest>> {
    let mut batches: Vec<Vec<BlobDigest>> = Vec::new();
    let mut room = 0;
    for digest in digests {
        // The digest and the framing of a blob take some space too.
        let cost = digest.size + 100;
        match batches.last_mut() {
            Some(batch) if cost <= room && batch.len() < BATCH_COUNT => {
                room -= cost;
                batch.push(*digest);
            }
            _ => {
                room = BATCH.saturating_sub(cost);
                batches.push(vec![*digest]);
            }
        }
    }
    batches
}

pub(crate) fn file_error(path: &Path) -> impl Fn(std::io::Error) -> RemoteError {
    let path = path.display().to_string();
    move |source| RemoteError::File { path: path.clone(), source }
}
