//! Output files and blobs, streamed from the store.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Extension as FromExtensions, State as FromState},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use callers::Caller;
use cas::{Cas, CasError};
use model::{BlobDigest, Digest};

use crate::{
    failure::Failure,
    input::{self, PathParameters, QueryParameters},
    state::Api,
};

/// Handles `GET /v1/builds/{group}/{id}/outputs/{path}`: sends one output file.
pub(crate) async fn output(
    FromState(api): FromState<Api>,
    names: PathParameters,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let key = names.key()?;
    let build = api.client.get(&key).await?;
    let path = names.text("path");
    let result = build.record.result();
    let result = result.ok_or_else(|| {
        Failure::missing(format!("build {key} has not finished: it has no output files yet"))
    })?;
    let output = result.outputs.iter().find(|output| output.path == path);
    let output =
        output.ok_or_else(|| Failure::missing(format!("build {key} has no output file {path:?}")))?;
    send(&api.cas, &output.digest, output.blob(), &headers).await
}

/// Handles `GET /v1/blobs/{digest}`: sends one blob. The store of another farm finds it only by digest and size.
pub(crate) async fn blob(
    FromState(api): FromState<Api>,
    names: PathParameters,
    query: QueryParameters,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let api = api.seen_by(&caller)?;
    let digest = names.digest()?;
    let blob = api.cas.resolve(&digest, query.number("size_bytes")?).await?;
    send(&api.cas, &digest, blob, &headers).await
}

async fn send(
    cas: &Cas,
    digest: &Digest,
    blob: BlobDigest,
    headers: &HeaderMap,
) -> Result<Response, Failure> {
    let tag = format!("\"{digest}\"");
    if input::header_text(headers, header::IF_NONE_MATCH).is_some_and(|seen| matches(seen, &tag)) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    let parts = cas.read(&blob, 0, None).await?.ok_or(CasError::Missing { digest: blob })?;
    let head = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::CONTENT_LENGTH, HeaderValue::from(blob.size)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    Ok((head, [(header::ETAG, tag)], Body::from_stream(parts)).into_response())
}

/// Whether the value of `If-None-Match` contains `tag`.
fn matches(seen: &str, tag: &str) -> bool {
    seen.split(',').map(str::trim).any(|seen| seen == "*" || seen.trim_start_matches("W/") == tag)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn tags() {
        let tag = "\"sha256:ab\"";
        assert!(matches(tag, tag) && matches("*", tag) && matches("\"x\", W/\"sha256:ab\"", tag));
        assert!(!matches("\"sha256:a\"", tag) && !matches("", tag));
    }
}
