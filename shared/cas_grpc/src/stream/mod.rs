//! `ByteStream`, implemented directly on HTTP/2: bytes go from the connection to the store and back without being
//! collected in messages. Memory use therefore depends neither on the size of a client's messages nor on the
//! number of its streams.

mod logs;
mod parse;
mod read;
mod wire;
mod write;
mod write_requests;

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use callers::Caller;
use cas::Cas;
use futures::future::BoxFuture;
use reapi::{
    bytestream::{QueryWriteStatusRequest, QueryWriteStatusResponse, ReadRequest},
    resource::WriteName,
    stream,
};
use tonic::{
    Status,
    body::Body,
    codegen::{Service, http},
    metadata::MetadataMap,
    server::NamedService,
};

use crate::{api::Shared, fault::bounded, log_streams::LogProgress};

#[derive(Clone)]
pub(crate) struct ByteStreamService(pub(crate) Arc<Shared>);

impl NamedService for ByteStreamService {
    const NAME: &'static str = stream::SERVICE;
}

impl Service<http::Request<Body>> for ByteStreamService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let caller = Caller::of(&parts.extensions);
            let headers = MetadataMap::from_headers(parts.headers);
            let answer = match parts.uri.path() {
                stream::READ => answer_read(&shared, &caller, &headers, body).await,
                stream::WRITE => write::answer(&shared, &caller, headers, body)
                    .await
                    .map(|message| wire::single_response(&message)),
                stream::QUERY_WRITE_STATUS => answer_query(&shared, &caller, &headers, body).await,
                other => Err(Status::unimplemented(format!("method {other} is not supported"))),
            };
            Ok(answer.unwrap_or_else(Status::into_http))
        })
    }
}

async fn answer_read(
    shared: &Shared,
    caller: &Caller,
    headers: &MetadataMap,
    body: Body,
) -> Result<http::Response<Body>, Status> {
    let request: ReadRequest = wire::single_request(body, shared.api.limits.pause_max).await?;
    wire::check_repeated_name(headers, &request.resource_name)?;
    let cas = shared.seen_by_caller(caller, headers)?;
    Ok(wire::stream_response(read::open(shared, &cas, caller, &request).await?))
}

async fn answer_query(
    shared: &Shared,
    caller: &Caller,
    headers: &MetadataMap,
    body: Body,
) -> Result<http::Response<Body>, Status> {
    let request: QueryWriteStatusRequest = wire::single_request(body, shared.api.limits.pause_max).await?;
    let cas = shared.seen_by_caller(caller, headers)?;
    let progress = query(shared, &cas, &request.resource_name).await?;
    let answer = QueryWriteStatusResponse {
        committed_size: i64::try_from(progress.committed).unwrap_or(i64::MAX),
        complete: progress.complete,
    };
    Ok(wire::single_response(&answer))
}

/// Returns the progress of an upload. An unknown upload has no bytes yet: clients then start at the beginning.
async fn query(shared: &Shared, cas: &Cas, name: &str) -> Result<LogProgress, Status> {
    match WriteName::parse(name)? {
        WriteName::Log { parent, id, token } => logs::progress(shared, &parent, &id, &token).await,
        WriteName::Blob { blob, uuid } => {
            shared.instance(&blob.instance)?;
            if bounded(cas.contains(&blob.digest)).await? {
                return Ok(LogProgress { committed: blob.digest.size, complete: true });
            }
            let committed = shared.uploads.committed(cas.zone(), &blob.instance, &uuid, &blob.digest);
            Ok(LogProgress { committed, complete: false })
        }
    }
}
