//! The `Write` method of `ByteStream`.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use callers::Caller;
use cas::Cas;
use model::BlobDigest;
use reapi::{
    bytestream::WriteResponse,
    metadata,
    resource::{BlobName, Compressor, WriteName},
};
use telemetry::metrics::{Counter, count};
use tonic::{Status, body::Body, metadata::MetadataMap};

use super::{
    logs, wire,
    write_requests::{Event, WriteRequests},
};
use crate::{
    api::Shared,
    budget::Held,
    compress::Decompression,
    fault::{bounded, status_of},
    uploads::UploadGuard,
};

/// Maximum size in bytes of a blob that is stored with one call.
const SMALL_BYTES: u64 = 64 << 10;

/// Idle time after which received bytes are written to the disk, so that active uploads get the memory.
const PAUSE: Duration = Duration::from_millis(20);

/// Answers a write call.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    caller: &Caller,
    headers: MetadataMap,
    body: Body,
) -> Result<WriteResponse, Status> {
    let pieces = WriteRequests::open(body, shared.api.limits.pause_max).await?;
    wire::check_repeated_name(&headers, &pieces.name)?;
    match WriteName::parse(&pieces.name)? {
        WriteName::Log { parent, id, token } => {
            let progress = logs::write(shared, &parent, &id, &token, pieces).await?;
            Ok(WriteResponse { committed_size: i64::try_from(progress.committed).unwrap_or(i64::MAX) })
        }
        WriteName::Blob { blob, uuid } => {
            let uncompressed = metadata::counts_uncompressed(&metadata::request_metadata(&headers));
            shared.instance(&blob.instance)?;
            let cas = shared.seen_by_caller(caller, &headers)?;
            Write { shared, cas, blob, uuid, uncompressed }.run(pieces).await
        }
    }
}

/// A blob that is being written.
struct Write<'a> {
    shared: &'a Arc<Shared>,
    /// The store as the caller sees it.
    cas: Cas,
    blob: BlobName,
    uuid: String,
    /// Whether the client expects the uncompressed size as the result of a compressed upload.
    uncompressed: bool,
}

impl Write<'_> {
    fn digest(&self) -> &BlobDigest {
        &self.blob.digest
    }

    async fn run(self, mut pieces: WriteRequests) -> Result<WriteResponse, Status> {
        let cas = &self.cas;
        if bounded(cas.contains(self.digest())).await? {
            pieces.drain(self.digest().size).await;
            return Ok(self.present());
        }
        let identity = self.blob.compressor == Compressor::Identity;
        if identity && pieces.finish && pieces.offset() == 0 && self.digest().size <= SMALL_BYTES {
            return self.store_small(pieces).await;
        }
        let uploads = &self.shared.uploads;
        let guard =
            uploads.begin(cas, &self.blob.instance, &self.uuid, self.digest(), pieces.offset()).await?;
        let decompression = match self.blob.compressor {
            Compressor::Identity => None,
            Compressor::Zstd => {
                let held = Held::new(&self.shared.budget);
                Some(Decompression::new(self.digest().size, held).await?)
            }
        };
        let transfer = Transfer { digest: *self.digest(), guard, decompression };
        // A client that disconnects ends the call, but must not interrupt the store in the middle of a piece.
        let outcome = tokio::spawn(transfer.run(pieces)).await;
        let outcome = outcome.map_err(|error| Status::internal(format!("the upload failed: {error}")))??;
        Ok(self.outcome(&outcome))
    }

    /// The answer for a blob that is already present.
    fn present(&self) -> WriteResponse {
        let whole = self.uncompressed || self.blob.compressor == Compressor::Identity;
        let size = i64::try_from(self.digest().size).unwrap_or(i64::MAX);
        WriteResponse { committed_size: if whole { size } else { -1 } }
    }

    fn outcome(&self, outcome: &Outcome) -> WriteResponse {
        let committed_size = match outcome {
            Outcome::Complete { received }
                if self.blob.compressor == Compressor::Zstd && !self.uncompressed =>
            {
                *received
            }
            Outcome::Complete { .. } => i64::try_from(self.digest().size).unwrap_or(i64::MAX),
            Outcome::Partial { committed } => i64::try_from(*committed).unwrap_or(i64::MAX),
        };
        WriteResponse { committed_size }
    }

    /// Stores a blob that arrives in one message.
    async fn store_small(&self, mut pieces: WriteRequests) -> Result<WriteResponse, Status> {
        let (mut one, mut more) = (Bytes::new(), BytesMut::new());
        loop {
            match pieces.next().await? {
                Event::Data(data) if one.is_empty() => one = data,
                Event::Data(data) => {
                    more.extend_from_slice(if more.is_empty() { &one } else { &[] });
                    more.extend_from_slice(&data);
                }
                Event::Finish => break,
                Event::Closed => return Err(Status::cancelled("the stream was interrupted")),
            }
            if one.len().max(more.len()) as u64 > self.digest().size {
                return Err(status_of(&cas::CasError::TooLong { wanted: *self.digest() }));
            }
        }
        let content = if more.is_empty() { one } else { more.freeze() };
        count(Counter::CasBytesWritten, &[], content.len() as u64);
        bounded(self.cas.put(self.digest(), content)).await?;
        pieces.await_end().await;
        Ok(self.present())
    }
}

/// How a transfer ended.
enum Outcome {
    Complete {
        /// Bytes received in this stream.
        received: i64,
    },
    /// The rest of the blob is still to come, in another stream.
    Partial {
        /// Bytes of the blob accepted so far.
        committed: u64,
    },
}

/// The transfer of an upload to the store.
struct Transfer {
    digest: BlobDigest,
    guard: UploadGuard,
    decompression: Option<Decompression>,
}

impl Transfer {
    async fn run(mut self, mut pieces: WriteRequests) -> Result<Outcome, Status> {
        let wanted = self.guard.wanted();
        tokio::pin!(wanted);
        let mut pending = false;
        loop {
            let event = tokio::select! {
                biased;
                event = pieces.next() => event?,
                () = &mut wanted => return Err(Status::aborted("another stream continues this upload")),
                () = tokio::time::sleep(PAUSE), if pending => {
                    self.guard.flush().await?;
                    pending = false;
                    continue;
                }
            };
            match event {
                Event::Data(data) => {
                    self.take(data).await?;
                    pending = true;
                }
                Event::Finish => return self.finish(pieces).await,
                Event::Closed => return self.close(),
            }
        }
    }

    async fn take(&mut self, mut data: Bytes) -> Result<(), Status> {
        count(Counter::CasBytesWritten, &[], data.len() as u64);
        let Some(decompression) = &mut self.decompression else { return self.guard.write(data).await };
        loop {
            match decompression.next(&mut data) {
                Ok(Some(piece)) => self.guard.write(piece).await?,
                Ok(None) => return Ok(()),
                Err(status) => {
                    self.guard.discard();
                    return Err(status);
                }
            }
        }
    }

    async fn finish(mut self, mut pieces: WriteRequests) -> Result<Outcome, Status> {
        if self.decompression.as_ref().is_some_and(|decompression| !decompression.is_whole()) {
            self.guard.discard();
            return Err(Status::invalid_argument("the zstd stream is truncated"));
        }
        self.guard.finish().await?;
        pieces.await_end().await;
        Ok(Outcome::Complete { received: pieces.received() })
    }

    /// Handles a stream that ended without `finish_write`. The upload can be resumed, unless all bytes arrived: an
    /// answer with the whole size would wrongly tell the client that the blob is stored.
    fn close(self) -> Result<Outcome, Status> {
        let committed = self.guard.written();
        if committed < self.digest.size {
            return Ok(Outcome::Partial { committed });
        }
        Err(Status::invalid_argument("finish_write was not set in the last request; the blob is not stored"))
    }
}
