//! Why an image cannot be used.

use std::{io, path::Path, time::Duration};

use cas::CasError;
use download::DownloadError;

/// Why an image cannot be used. The texts do not repeat the name of the image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The image, or what its registry says about it, is at fault: another attempt has the same result.
    #[error("{0}")]
    Invalid(String),
    /// The registry does not have it.
    #[error("its registry does not have {0}")]
    NotFound(String),
    /// It was only in the farm's store, which does not have it any more.
    #[error(
        "the store of the farm does not have it any more: propose its environment again (forebay env add)"
    )]
    Gone,
    /// The registry does not give it to this farm.
    #[error(
        "the registry {registry} refuses to give it ({status}); the credentials are those of the setting registries"
    )]
    Denied {
        registry: String,
        /// The status of the response, with its name.
        status: String,
    },
    /// The settings do not allow it.
    #[error("the setting {setting} does not allow it: {why}")]
    NotAllowed { setting: &'static str, why: String },
    /// The registry does not answer, or not in time, or asks to come later.
    #[error("the registry {registry} does not give it now: {why}")]
    Unavailable {
        registry: String,
        why: String,
        /// When the registry wants the next request, if it says so.
        retry_after: Option<Duration>,
    },
    /// The store of the farm failed.
    #[error("the store failed")]
    Store(#[source] CasError),
    /// A file of the machine failed.
    #[error("{doing} failed")]
    File {
        /// The failed operation with its path.
        doing: String,
        source: io::Error,
    },
}

impl ImageError {
    /// Whether another attempt, or another machine, has the same result.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Invalid(_)
            | Self::NotFound(_)
            | Self::Gone
            | Self::Denied { .. }
            | Self::NotAllowed { .. } => true,
            Self::Unavailable { .. } | Self::Store(_) | Self::File { .. } => false,
        }
    }

    /// For content of a registry that the store does not take.
    pub(crate) fn stored(error: CasError) -> Self {
        if error.is_about_content() {
            return Self::Invalid(format!("its registry sent other content than it names: {error}"));
        }
        Self::Store(error)
    }

    pub(crate) fn file(doing: impl Into<String>, source: io::Error) -> Self {
        Self::File { doing: doing.into(), source }
    }

    /// For a request to `registry` that failed.
    pub(crate) fn request(registry: &str, error: &DownloadError) -> Self {
        let why = telemetry::error_chain(error);
        match error {
            DownloadError::Redirect(_) => Self::Invalid(format!("the registry {registry} {why}")),
            DownloadError::Invalid(_) => {
                Self::Invalid(format!("the registry {registry} names an invalid URL: {why}"))
            }
            DownloadError::Closed(_) => Self::NotAllowed { setting: "fetch_hosts", why },
            DownloadError::TooLarge { .. } => Self::Invalid(format!("a response of {registry}: {why}")),
            DownloadError::Client(_)
            | DownloadError::Unresolved(_)
            | DownloadError::TimedOut(_)
            | DownloadError::Unreachable(_)
            | DownloadError::Refused(_)
            | DownloadError::Write(_) => {
                Self::Unavailable { registry: registry.to_owned(), why, retry_after: None }
            }
        }
    }
}

/// A path for messages, at most 200 characters.
pub(crate) fn shown(path: &Path) -> String {
    format!("{:?}", path.display().to_string().chars().take(200).collect::<String>())
}
