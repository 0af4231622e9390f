//! The `Read` method of `ByteStream`.

use callers::Caller;
use cas::Cas;
use futures::StreamExt as _;
use reapi::{
    bytestream::ReadRequest,
    resource::{BlobName, Compressor, ReadName},
};
use telemetry::metrics::{Counter, count};
use tonic::Status;

use super::logs;
use crate::{
    api::Shared,
    budget::Held,
    compress::compress,
    fault::{bounded, status_of},
    log_streams::LogStream,
};

/// Opens the requested resource at the requested offset.
pub(super) async fn open(
    shared: &Shared,
    cas: &Cas,
    caller: &Caller,
    request: &ReadRequest,
) -> Result<LogStream, Status> {
    let name = ReadName::parse(&request.resource_name)?;
    let offset = u64::try_from(request.read_offset)
        .map_err(|_| Status::out_of_range(format!("read_offset {} is negative", request.read_offset)))?;
    let limit = u64::try_from(request.read_limit)
        .map_err(|_| Status::invalid_argument(format!("read_limit {} is negative", request.read_limit)))?;
    let limit = (limit > 0).then_some(limit);
    match name {
        ReadName::Blob(blob) => open_blob(shared, cas, &blob, offset, limit).await,
        ReadName::Log { parent, id } => logs::read(shared, caller, (&parent, &id), offset, limit).await,
    }
}

async fn open_blob(
    shared: &Shared,
    cas: &Cas,
    blob: &BlobName,
    offset: u64,
    limit: Option<u64>,
) -> Result<LogStream, Status> {
    shared.instance(&blob.instance)?;
    let compressed = blob.compressor == Compressor::Zstd;
    if compressed && limit.is_some() {
        return Err(Status::invalid_argument("read_limit must be 0 for a compressed blob"));
    }
    let digest = blob.digest;
    let content = bounded(cas.read(&digest, offset, limit)).await?;
    let content = content.ok_or_else(|| Status::not_found(format!("the store has no blob {digest}")))?;
    if offset > digest.size {
        return Err(Status::out_of_range(format!("read_offset {offset} is beyond the end of {digest}")));
    }
    if compressed {
        let packed = compress(content, Held::new(&shared.budget)).await?;
        return Ok(packed.inspect(|piece| read_bytes(piece.as_ref().map_or(0, bytes::Bytes::len))).boxed());
    }
    let counted = content.map(|piece| {
        let piece = piece.map_err(|error| status_of(&error))?;
        read_bytes(piece.len());
        Ok(piece)
    });
    Ok(counted.boxed())
}

fn read_bytes(bytes: usize) {
    count(Counter::CasBytesRead, &[], bytes as u64);
}
