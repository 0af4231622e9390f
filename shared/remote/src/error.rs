//! What can go wrong.

use model::BlobDigest;
use tonic::{Code, Status};

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// Nobody answers.
    #[error("the Remote Execution API at {url} is not reachable")]
    Unreachable {
        /// Where.
        url: String,
        /// Why.
        #[source]
        source: tonic::transport::Error,
    },
    /// The server refused.
    #[error("{what}: {} ({:?})", status.message(), status.code())]
    Refused {
        /// What was asked.
        what: String,
        /// Its answer.
        status: Box<Status>,
    },
    /// A blob that is not there.
    #[error("the store has no blob {digest}")]
    Missing {
        /// Which.
        digest: BlobDigest,
    },
    /// A file that cannot be read or written.
    #[error("{path} cannot be used")]
    File {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// An answer that makes no sense.
    #[error("the server answered {what} with something unexpected: {why}")]
    Answer {
        /// What was asked.
        what: String,
        /// What is wrong.
        why: String,
    },
}

impl RemoteError {
    /// A refusal of `what`.
    pub(crate) fn refused(what: impl Into<String>) -> impl FnOnce(Status) -> Self {
        let what = what.into();
        move |status| Self::Refused { what, status: Box::new(status) }
    }

    /// Whether waiting may help.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            // A status that came from the server has no source: this one is of a connection that broke.
            Self::Refused { status, .. } => {
                status.code() == Code::Unavailable || std::error::Error::source(&**status).is_some()
            }
            Self::Missing { .. } | Self::File { .. } | Self::Answer { .. } => false,
        }
    }
}
