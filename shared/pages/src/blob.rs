//! The page of a blob of the store, for example the log of a test.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Extension as FromExtensions, State as FromState},
    http::{HeaderValue, header},
    response::{Html, IntoResponse as _, Response},
};
use callers::Caller;
use client::text::size;
use http_api::{Failure, PathParameters, QueryParameters};
use maud::html;
use model::BlobDigest;

use crate::{
    layout::{ErrorPage, page_for, short, url_part},
    reader::Reader,
    site::Site,
    text_file,
};

/// The digest in a path.
pub(crate) fn digest(text: &str) -> Result<BlobDigest, Failure> {
    text.parse().map_err(|error: model::ParseBlobDigestError| Failure::invalid(error.to_string()))
}

/// The path at which a blob is downloaded under a name.
pub(crate) fn download_path(blob: &BlobDigest, name: &str) -> String {
    format!("/blob-download/{blob}?name={}", url_part(name.rsplit('/').next().unwrap_or(name)))
}

/// Handles `GET /blob-download/{digest}`: sends a blob as a file, which the browser does not show by itself.
pub(crate) async fn download(
    FromState(site): FromState<Site>,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    names: PathParameters,
    query: QueryParameters,
) -> Result<Response, ErrorPage> {
    let site = site.seen_by(&caller)?;
    let blob = digest(names.text("digest"))?;
    let missing = || Failure::missing(format!("the store has blob {blob} no more"));
    let parts = site.api.cas.read(&blob, 0, None).await.map_err(Failure::from)?.ok_or_else(missing)?;
    let name = query.last("name").unwrap_or_else(|| "blob".to_owned());
    // Other characters could end the value of the header, or lead out of the folder of downloads.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    let name: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).take(100).collect();
    let disposition = HeaderValue::try_from(format!("attachment; filename=\"{name}\""));
    let head = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::CONTENT_LENGTH, HeaderValue::from(blob.size)),
        (header::CONTENT_DISPOSITION, disposition.unwrap_or(HeaderValue::from_static("attachment"))),
    ];
    Ok((head, Body::from_stream(parts)).into_response())
}

/// Handles `GET /blobs/{digest}`: shows a blob as text.
pub(crate) async fn show(
    FromState(site): FromState<Site>,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    names: PathParameters,
    query: QueryParameters,
) -> Result<Html<String>, ErrorPage> {
    let site = site.seen_by(&caller)?;
    let blob = digest(names.text("digest"))?;
    let shown = text_file::of(&site, &blob).await?;
    let name = query.last("name").map_or_else(|| blob.to_string(), |name| short(&name, 200));
    let content = html! {
        h1 { (name) }
        p { (size(blob.size)) " " a href=(download_path(&blob, &name)) { "Download" } }
        (shown)
    };
    Ok(page_for(&name, &content, false, &Reader::of(&caller, &site.callers)))
}
