//! The internal step `fetch`: downloads a file from a URL, or takes it from the farm's store.

use std::{io, path::Path, sync::Arc};

use cas::{Cas, CasError};
use download::{DownloadError, Downloader, StatusCode};
use hashing::CopyError;
use model::Digest;

use crate::{
    task_error::TaskError,
    tree::{Content, FUNCTION, Node},
};

/// Downloads `url`, of at most `bytes_max` bytes, into `file`.
pub(crate) async fn fetch(
    downloader: &Downloader,
    url: &str,
    wanted: Option<&Digest>,
    file: &Path,
    bytes_max: u64,
) -> Result<Node, TaskError> {
    let fetched = downloader.download(url, &[], file, bytes_max, FUNCTION.hasher()).await;
    let found = fetched.map_err(|error| failed(url, &error))?;
    if let Some(wanted) = wanted.filter(|wanted| wanted.hex() != found.hex()) {
        let found = found.hex();
        return Err(TaskError::Own(format!("{url} has digest sha256:{found}, expected {wanted}")));
    }
    let content = Arc::new(Content::hashed(file.to_owned(), found));
    Ok(Node::File { content, executable: false })
}

/// Copies the file with this digest, and perhaps this size, of at most `bytes_max` bytes, from the farm's store into `file`.
pub(crate) async fn from_store(
    cas: &Cas,
    (digest, size): (&Digest, Option<u64>),
    file: &Path,
    bytes_max: u64,
) -> Result<Node, TaskError> {
    let unread = |error: &CasError| refused(digest, error);
    let blob = cas.resolve(digest, size).await.map_err(|error| unread(&error))?;
    if blob.size > bytes_max {
        let bytes = blob.size;
        let why = format!("file {digest} of the store has {bytes} bytes, more than the limit of {bytes_max}");
        return Err(TaskError::Own(why));
    }
    let unwritten =
        |error: io::Error| TaskError::Farm(format!("cannot write the content of {digest}: {error}"));
    let mut out = tokio::fs::File::create(file).await.map_err(unwritten)?;
    let pieces = cas.read(&blob, 0, None).await.map_err(|error| unread(&error))?;
    let pieces = pieces.ok_or_else(|| unread(&CasError::Missing { digest: blob }))?;
    let found =
        hashing::copy_stream(pieces, &mut out, FUNCTION.hasher()).await.map_err(|error| match error {
            CopyError::Read(error) => unread(&error),
            CopyError::Write(error) => unwritten(error),
        })?;
    if found != blob {
        return Err(TaskError::Farm(format!("file {blob} of the store is damaged: its content is {found}")));
    }
    Ok(Node::File { content: Arc::new(Content::hashed(file.to_owned(), found)), executable: false })
}

fn refused(digest: &Digest, error: &CasError) -> TaskError {
    if matches!(error, CasError::NotFound { sized: false, .. }) {
        let why = "the farm's store cannot look up files without their size: set `fetch.size_bytes` of";
        TaskError::Own(format!("{why} {digest}"))
    } else if matches!(error, CasError::NotFound { .. } | CasError::Missing { .. }) {
        let why = "it was never uploaded, has another size, or was evicted; upload it again";
        TaskError::Own(format!("the farm's store has no file {digest}: {why}"))
    } else {
        TaskError::Farm(format!("cannot read file {digest}: {}", telemetry::error_chain(error)))
    }
}

fn failed(url: &str, error: &DownloadError) -> TaskError {
    let text = || format!("cannot fetch {url}: {}", telemetry::error_chain(error));
    match error {
        DownloadError::TooLarge { bytes_max } => {
            TaskError::Own(format!("{url} is larger than the limit of {bytes_max} bytes"))
        }
        DownloadError::Write(error) => TaskError::Farm(format!("cannot write the content of {url}: {error}")),
        DownloadError::Invalid(_) | DownloadError::Redirect(_) | DownloadError::Closed(_) => {
            TaskError::Own(text())
        }
        DownloadError::Refused(status)
            if status.is_client_error() && *status != StatusCode::TOO_MANY_REQUESTS =>
        {
            TaskError::Own(text())
        }
        DownloadError::Client(_)
        | DownloadError::TimedOut(_)
        | DownloadError::Unreachable(_)
        | DownloadError::Unresolved(_)
        | DownloadError::Refused(_) => TaskError::Farm(text()),
    }
}
