//! Blobs in chunks: splits blobs, and splices blobs from uploaded chunks.

use cas::{Cas, ChunkingFunction};
use futures::{StreamExt as _, stream, stream::BoxStream};
use model::BlobDigest;
use reapi::{
    digest,
    execution::{
        self, GetChunkMappingRequest, GetChunkMappingResponse, RegisterChunkMappingRequest,
        RegisterChunkMappingResponse, SpliceBlobRequest, SpliceBlobResponse, SplitBlobRequest,
        SplitBlobResponse,
    },
};
use tonic::{Status, Streaming};

use crate::{
    api::Shared,
    fault::{bounded, busy},
};

/// Maximum number of chunks of a blob.
const CHUNKS_MAX: usize = 1 << 20;
/// Maximum number of digests in one message.
const CHUNKS_PER_MESSAGE: usize = 10_000;
/// Maximum time between two messages of a stream.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Splits a blob; the answer must fit one message.
pub(crate) async fn split(cas: &Cas, request: &SplitBlobRequest) -> Result<SplitBlobResponse, Status> {
    let blob = blob(request.digest_function, request.blob_digest.as_ref())?;
    let (chunks, function) = find_chunks(cas, &blob).await?;
    Ok(SplitBlobResponse {
        chunk_digests: chunks.iter().map(digest::to_proto).collect(),
        chunking_function: function,
    })
}

/// Splits a blob into any number of chunks.
pub(crate) async fn mapping(
    cas: &Cas,
    request: GetChunkMappingRequest,
) -> Result<BoxStream<'static, Result<GetChunkMappingResponse, Status>>, Status> {
    let blob = blob(request.digest_function, request.blob_digest.as_ref())?;
    let (chunks, function) = find_chunks(cas, &blob).await?;
    let messages: Vec<_> = chunks
        .chunks(CHUNKS_PER_MESSAGE)
        .enumerate()
        .map(|(index, chunks)| GetChunkMappingResponse {
            chunk_digests: chunks.iter().map(digest::to_proto).collect(),
            chunking_function: if index == 0 { function } else { 0 },
        })
        .collect();
    Ok(stream::iter(messages).map(Ok).boxed())
}

/// Splices a blob from the chunks of one request.
pub(crate) async fn splice(cas: &Cas, request: &SpliceBlobRequest) -> Result<SpliceBlobResponse, Status> {
    let first = request.blob_digest.as_ref();
    let function = digest::function(request.digest_function, first)?;
    let blob = digest::required(first, function, "blob_digest")?;
    let chunks = digest::all(&request.chunk_digests, function, "chunk_digests")?;
    store_spliced(cas, &blob, &chunks, request.chunking_function).await?;
    Ok(SpliceBlobResponse { blob_digest: Some(digest::to_proto(&blob)) })
}

/// Splices a blob from any number of chunks.
pub(crate) async fn register(
    shared: &Shared,
    cas: &Cas,
    mut requests: Streaming<RegisterChunkMappingRequest>,
) -> Result<RegisterChunkMappingResponse, Status> {
    let first = next(&mut requests).await?;
    let first = first.ok_or_else(|| Status::invalid_argument("the stream contains no message"))?;
    shared.instance(&first.instance_name)?;
    let function = digest::function(first.digest_function, first.blob_digest.as_ref())?;
    let blob = digest::required(first.blob_digest.as_ref(), function, "blob_digest")?;
    let mut chunks = digest::all(&first.chunk_digests, function, "chunk_digests")?;
    while let Some(request) = next(&mut requests).await? {
        chunks.extend(digest::all(&request.chunk_digests, function, "chunk_digests")?);
        if chunks.len() > CHUNKS_MAX {
            let message = format!("chunk_digests: more than {CHUNKS_MAX} chunks");
            return Err(Status::invalid_argument(message));
        }
    }
    store_spliced(cas, &blob, &chunks, first.chunking_function).await?;
    Ok(RegisterChunkMappingResponse { blob_digest: Some(digest::to_proto(&blob)) })
}

async fn next(
    requests: &mut Streaming<RegisterChunkMappingRequest>,
) -> Result<Option<RegisterChunkMappingRequest>, Status> {
    let message = tokio::time::timeout(PATIENCE, requests.message()).await;
    message.map_err(|_| busy("timed out waiting for the next message (60 s)"))?
}

fn blob(function: i32, blob: Option<&execution::Digest>) -> Result<BlobDigest, Status> {
    digest::required(blob, digest::function(function, blob)?, "blob_digest")
}

async fn find_chunks(cas: &Cas, blob: &BlobDigest) -> Result<(Vec<BlobDigest>, i32), Status> {
    let split = bounded(cas.split(blob)).await?;
    let split = split.ok_or_else(|| Status::not_found(format!("the store has no blob {blob}")))?;
    Ok((split.chunks, split.function.to_proto()))
}

async fn store_spliced(
    cas: &Cas,
    blob: &BlobDigest,
    chunks: &[BlobDigest],
    function: i32,
) -> Result<(), Status> {
    bounded(cas.splice(blob, chunks, ChunkingFunction::from_proto(function))).await
}
