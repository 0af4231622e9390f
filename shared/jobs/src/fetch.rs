//! The internal step `fetch`: downloads a file from a URL.

use std::{path::Path, sync::Arc};

use futures::TryStreamExt as _;
use model::Digest;
use tokio::io::AsyncWriteExt as _;

use crate::{
    task_error::TaskError,
    tree::{Content, FUNCTION, Node},
};

/// Downloads `url`, of at most `bytes_max` bytes, into `file`.
pub(crate) async fn fetch(
    http: &reqwest::Client,
    url: &str,
    wanted: Option<&Digest>,
    file: &Path,
    bytes_max: u64,
) -> Result<Node, TaskError> {
    let failed = |error: reqwest::Error| {
        let text = format!("cannot fetch {url}: {}", telemetry::error_chain(&error));
        let refused = error.status().is_some_and(|status| status.is_client_error() && status != 429);
        if refused || error.is_builder() || error.is_redirect() {
            TaskError::Own(text)
        } else {
            TaskError::Farm(text)
        }
    };
    let large = || TaskError::Own(format!("{url} is larger than the limit of {bytes_max} bytes"));
    let response =
        http.get(url).send().await.and_then(reqwest::Response::error_for_status).map_err(failed)?;
    if response.content_length().is_some_and(|length| length > bytes_max) {
        return Err(large());
    }
    let unwritable =
        |error: std::io::Error| TaskError::Farm(format!("cannot write the content of {url}: {error}"));
    let mut out = tokio::fs::File::create(file).await.map_err(unwritable)?;
    let mut hasher = FUNCTION.hasher();
    let mut parts = response.bytes_stream();
    while let Some(part) = parts.try_next().await.map_err(failed)? {
        hasher.update(&part);
        if hasher.size() > bytes_max {
            return Err(large());
        }
        out.write_all(&part).await.map_err(unwritable)?;
    }
    out.flush().await.map_err(unwritable)?;
    let found = hasher.finish();
    if let Some(wanted) = wanted.filter(|wanted| wanted.hex() != found.hex()) {
        let found = found.hex();
        return Err(TaskError::Own(format!("{url} has digest sha256:{found}, expected {wanted}")));
    }
    let content = Arc::new(Content::hashed(file.to_owned(), found));
    Ok(Node::File { content, executable: false })
}
