//! The internal step `fetch`: downloads a file from a URL.

use std::{path::Path, sync::Arc};

use download::{DownloadError, Downloader, StatusCode};
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
