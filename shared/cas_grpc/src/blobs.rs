//! The content-addressable store service: whole blobs, in batches.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use invariant::{Present as _, impossible};
use model::{BlobDigest, DigestFunction};
use reapi::{
    digest,
    execution::{
        self, BatchReadBlobsRequest, BatchReadBlobsResponse, BatchUpdateBlobsRequest,
        BatchUpdateBlobsResponse, FindMissingBlobsRequest, FindMissingBlobsResponse, GetChunkMappingRequest,
        GetChunkMappingResponse, GetTreeRequest, GetTreeResponse, RegisterChunkMappingRequest,
        RegisterChunkMappingResponse, SpliceBlobRequest, SpliceBlobResponse, SplitBlobRequest,
        SplitBlobResponse, batch_read_blobs_response, batch_update_blobs_request,
        batch_update_blobs_response, content_addressable_storage_server::ContentAddressableStorage,
    },
    resource::Compressor,
    rpc,
    status::rpc_status,
};
use telemetry::metrics::{Counter, count};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    api::Shared,
    budget::Held,
    chunks, compress,
    fault::{bounded, status_of},
    tree,
};

pub(crate) struct BlobService(pub(crate) Arc<Shared>);

impl BlobService {
    fn check_batch(&self, bytes: u64) -> Result<(), Status> {
        let max = self.0.api.limits.batch_bytes_max;
        if bytes <= max {
            return Ok(());
        }
        Err(Status::invalid_argument(format!(
            "the blobs of this batch have {bytes} bytes (limit {max}); use ByteStream or several batches"
        )))
    }
}

#[tonic::async_trait]
impl ContentAddressableStorage for BlobService {
    type GetTreeStream = BoxStream<'static, Result<GetTreeResponse, Status>>;
    type GetChunkMappingStream = BoxStream<'static, Result<GetChunkMappingResponse, Status>>;

    async fn find_missing_blobs(
        &self,
        request: Request<FindMissingBlobsRequest>,
    ) -> Result<Response<FindMissingBlobsResponse>, Status> {
        let cas = self.0.seen_by(request.extensions(), request.metadata())?;
        let request = request.into_inner();
        self.0.instance(&request.instance_name)?;
        let function = digest::function(request.digest_function, request.blob_digests.first())?;
        let digests = digest::all(&request.blob_digests, function, "blob_digests")?;
        drop(request);
        let missing = bounded(cas.missing(&digests)).await?;
        count(Counter::CasBlobsMissing, &[], missing.len() as u64);
        count(Counter::CasBlobsFound, &[], digests.len().saturating_sub(missing.len()) as u64);
        let missing_blob_digests = missing.iter().map(digest::to_proto).collect();
        Ok(Response::new(FindMissingBlobsResponse { missing_blob_digests }))
    }

    async fn batch_update_blobs(
        &self,
        request: Request<BatchUpdateBlobsRequest>,
    ) -> Result<Response<BatchUpdateBlobsResponse>, Status> {
        let cas = self.0.seen_by(request.extensions(), request.metadata())?;
        let request = request.into_inner();
        self.0.instance(&request.instance_name)?;
        let first = request.requests.first().and_then(|blob| blob.digest.as_ref());
        let function = digest::function(request.digest_function, first)?;
        let batch = Batch::read(request.requests, function)?;
        self.check_batch(batch.bytes)?;
        Ok(Response::new(batch.store(&cas).await?))
    }

    async fn batch_read_blobs(
        &self,
        request: Request<BatchReadBlobsRequest>,
    ) -> Result<Response<BatchReadBlobsResponse>, Status> {
        let held = Held::of(request.extensions(), &self.0.budget);
        let cas = self.0.seen_by(request.extensions(), request.metadata())?;
        let request = request.into_inner();
        self.0.instance(&request.instance_name)?;
        let function = digest::function(request.digest_function, request.digests.first())?;
        let digests = digest::all(&request.digests, function, "digests")?;
        let bytes = digests.iter().fold(0, |sum: u64, digest| sum.saturating_add(digest.size));
        self.check_batch(bytes)?;
        // Space for the blob as read, and for its copy in the message.
        held.grow(bytes * 2).await?;
        let zstd = request
            .acceptable_compressors
            .iter()
            .any(|value| Compressor::from_proto(*value) == Some(Compressor::Zstd));
        let contents = bounded(cas.get_many(&digests)).await?;
        let mut sent = 0;
        let answer = |(digest, content): (&BlobDigest, Option<Bytes>)| {
            sent += content.as_ref().map_or(0, Bytes::len);
            read_response(digest, content, zstd)
        };
        let responses = digests.iter().zip(contents).map(answer).collect();
        count(Counter::CasBytesRead, &[], sent as u64);
        Ok(Response::new(BatchReadBlobsResponse { responses }))
    }

    async fn get_tree(
        &self,
        request: Request<GetTreeRequest>,
    ) -> Result<Response<Self::GetTreeStream>, Status> {
        let held = Held::of(request.extensions(), &self.0.budget);
        let cas = self.0.seen_by(request.extensions(), request.metadata())?;
        let request = request.into_inner();
        self.0.instance(&request.instance_name)?;
        Ok(Response::new(tree::stream(cas, held, &request).await?))
    }

    async fn split_blob(
        &self,
        request: Request<SplitBlobRequest>,
    ) -> Result<Response<SplitBlobResponse>, Status> {
        let cas = self.0.seen_by(request.extensions(), request.metadata())?;
        let request = request.into_inner();
        self.0.instance(&request.instance_name)?;
        Ok(Response::new(chunks::split(&cas, &request).await?))
    }

    async fn get_chunk_mapping(
        &self,
        request: Request<GetChunkMappingRequest>,
    ) -> Result<Response<Self::GetChunkMappingStream>, Status> {
        let cas = self.0.seen_by(request.extensions(), request.metadata())?;
        let request = request.into_inner();
        self.0.instance(&request.instance_name)?;
        Ok(Response::new(chunks::mapping(&cas, request).await?))
    }

    async fn splice_blob(
        &self,
        request: Request<SpliceBlobRequest>,
    ) -> Result<Response<SpliceBlobResponse>, Status> {
        let cas = self.0.seen_by(request.extensions(), request.metadata())?;
        let request = request.into_inner();
        self.0.instance(&request.instance_name)?;
        Ok(Response::new(chunks::splice(&cas, &request).await?))
    }

    async fn register_chunk_mapping(
        &self,
        request: Request<Streaming<RegisterChunkMappingRequest>>,
    ) -> Result<Response<RegisterChunkMappingResponse>, Status> {
        let cas = self.0.seen_by(request.extensions(), request.metadata())?;
        Ok(Response::new(chunks::register(&self.0, &cas, request.into_inner()).await?))
    }
}

/// The blobs of a batch upload.
struct Batch {
    /// The digest of each request, and its error if it cannot be read.
    requests: Vec<(execution::Digest, Option<Status>)>,
    /// The readable blobs, in the order of the requests.
    blobs: Vec<(BlobDigest, Bytes)>,
    /// Bytes of all blobs.
    bytes: u64,
}

impl Batch {
    /// A malformed digest fails the whole call, a bad compressor only its blob.
    fn read(
        requests: Vec<batch_update_blobs_request::Request>,
        function: DigestFunction,
    ) -> Result<Self, Status> {
        let mut batch = Self { requests: Vec::with_capacity(requests.len()), blobs: Vec::new(), bytes: 0 };
        for request in requests {
            let digest = digest::required(request.digest.as_ref(), function, "requests.digest")?;
            let content = match Compressor::from_proto(request.compressor) {
                Some(Compressor::Identity) => {
                    batch.bytes = batch.bytes.saturating_add(request.data.len() as u64);
                    Ok(Bytes::from(request.data))
                }
                Some(Compressor::Zstd) => {
                    batch.bytes = batch.bytes.saturating_add(digest.size.max(request.data.len() as u64));
                    batch.decompress(&request.data, &digest)
                }
                None => Err(Status::invalid_argument(format!(
                    "compressor {} is not supported; use IDENTITY or ZSTD",
                    request.compressor
                ))),
            };
            let refused = match content {
                Ok(content) => {
                    batch.blobs.push((digest, content));
                    None
                }
                Err(status) => Some(status),
            };
            batch.requests.push((request.digest.present("a digest that was read is not set"), refused));
        }
        Ok(batch)
    }

    /// Decompresses a blob, unless the batch is already too large.
    fn decompress(&self, packed: &[u8], digest: &BlobDigest) -> Result<Bytes, Status> {
        const FAR_TOO_LARGE: u64 = 32 << 20;
        if self.bytes > FAR_TOO_LARGE {
            Ok(Bytes::new())
        } else {
            compress::decompress_blob(packed, digest.size)
        }
    }

    async fn store(self, cas: &cas::Cas) -> Result<BatchUpdateBlobsResponse, Status> {
        count(Counter::CasBytesWritten, &[], self.bytes);
        let stored = bounded(async { Ok(cas.put_many(self.blobs).await) }).await?;
        let mut stored = stored.into_iter();
        let responses = self
            .requests
            .into_iter()
            .map(|(digest, refused)| {
                let outcome = if let Some(status) = refused {
                    Err(status)
                } else if let Some(stored) = stored.next() {
                    stored.map_err(|error| status_of(&error))
                } else {
                    impossible!("the store reports fewer blobs than it got");
                    Err(Status::internal("the store did not say whether it has the blob"))
                };
                let status = outcome.map_or_else(|status| rpc_status(&status), |()| rpc::Status::default());
                batch_update_blobs_response::Response { digest: Some(digest), status: Some(status) }
            })
            .collect();
        Ok(BatchUpdateBlobsResponse { responses })
    }
}

fn read_response(
    digest: &BlobDigest,
    content: Option<Bytes>,
    zstd: bool,
) -> batch_read_blobs_response::Response {
    let (data, compressor, status) = match content {
        None => {
            let status = Status::not_found(format!("the store has no blob {digest}"));
            (Vec::new(), Compressor::Identity, rpc_status(&status))
        }
        Some(content) => match zstd.then(|| compress::compress_blob(&content)).flatten() {
            Some(packed) => (packed, Compressor::Zstd, rpc::Status::default()),
            None => (content.into(), Compressor::Identity, rpc::Status::default()),
        },
    };
    batch_read_blobs_response::Response {
        digest: Some(digest::to_proto(digest)),
        data,
        compressor: compressor.to_proto().into(),
        status: Some(status),
    }
}
