//! Why a file could not be downloaded.

use std::io;

use reqwest::StatusCode;

use crate::reach::ReachError;

/// Why a file could not be downloaded. The texts do not repeat the requested URL.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The HTTP client could not be created.
    #[error(transparent)]
    Client(reqwest::Error),
    /// The URL or a header is invalid.
    #[error(transparent)]
    Invalid(reqwest::Error),
    /// The server redirected too often, or to a URL that is neither http nor https.
    #[error("{0}")]
    Redirect(&'static str),
    /// The host is at an address that is closed to downloads, also after a redirect.
    #[error(transparent)]
    Closed(ReachError),
    /// The name of the host is unknown.
    #[error(transparent)]
    Unresolved(ReachError),
    /// The server did not accept the connection or sent no data in time.
    #[error(transparent)]
    TimedOut(reqwest::Error),
    /// The connection failed, or broke before the end of the content.
    #[error(transparent)]
    Unreachable(reqwest::Error),
    /// The status of the response is not a success.
    #[error("the server responded with {0}")]
    Refused(StatusCode),
    /// The content is larger than the caller accepts.
    #[error("the content is larger than the limit of {bytes_max} bytes")]
    TooLarge { bytes_max: u64 },
    /// The local file could not be written.
    #[error("writing the content failed")]
    Write(#[source] io::Error),
}

impl From<reqwest::Error> for DownloadError {
    fn from(error: reqwest::Error) -> Self {
        if error.is_timeout() {
            Self::TimedOut(error)
        } else if error.is_builder() {
            Self::Invalid(error)
        } else {
            Self::Unreachable(error)
        }
    }
}

impl From<ReachError> for DownloadError {
    fn from(error: ReachError) -> Self {
        match error {
            ReachError::Closed { .. } => Self::Closed(error),
            ReachError::Unresolved { .. } => Self::Unresolved(error),
        }
    }
}
