//! Errors of calls to a server.

use model::BlobDigest;
use reapi::status::is_registry_unavailable;
use tonic::{Code, Status};

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The server does not answer.
    #[error("the Remote Execution API at {url} is not reachable")]
    Unreachable {
        url: String,
        #[source]
        source: tonic::transport::Error,
    },
    /// The server refused the call.
    #[error("{what}: {} ({:?})", status.message(), status.code())]
    Refused {
        /// The call, as a participle: "reading a batch of blobs".
        what: String,
        status: Box<Status>,
    },
    /// The connection was lost during a call, and the wait for a server ended without one.
    #[error("the connection to the gateway was lost while {what}")]
    Lost {
        /// The call, as a participle: "reading a batch of blobs".
        what: String,
        /// The failure of the call.
        #[source]
        source: Box<Self>,
    },
    #[error("the store has no blob {digest}")]
    Missing { digest: BlobDigest },
    /// A local file cannot be read or written.
    #[error("cannot read or write {path}")]
    File {
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// The server's answer violates the protocol.
    #[error("unexpected answer while {what}: {why}")]
    Answer {
        /// The call, as a participle: "reading a batch of blobs".
        what: String,
        why: String,
    },
}

impl RemoteError {
    /// Returns a function that turns the status of `what` into an error.
    pub(crate) fn refused(what: impl Into<String>) -> impl FnOnce(Status) -> Self {
        let what = what.into();
        move |status| Self::Refused { what, status: Box::new(status) }
    }

    /// Whether the server refused the request itself, so that it would refuse the same request again. Missing blobs are
    /// not a reason: they come with details, and can be uploaded again.
    pub fn is_invalid_request(&self) -> bool {
        match self {
            Self::Refused { status, .. } => {
                let is_permanent = status.code() == Code::FailedPrecondition && status.details().is_empty();
                let is_refused = matches!(
                    status.code(),
                    Code::InvalidArgument | Code::Unauthenticated | Code::PermissionDenied
                );
                is_refused || is_permanent
            }
            Self::Missing { .. }
            | Self::Unreachable { .. }
            | Self::Lost { .. }
            | Self::File { .. }
            | Self::Answer { .. } => false,
        }
    }

    /// Whether the certificate of the server or of this process is not accepted: to wait does not help.
    pub fn is_untrusted(&self) -> bool {
        let mut cause: Option<&dyn std::error::Error> = Some(self);
        while let Some(error) = cause {
            let text = error.to_string();
            if ["invalid peer certificate", "CertificateRequired", "UnknownCA"]
                .iter()
                .any(|sign| text.contains(sign))
            {
                return true;
            }
            cause = error.source();
        }
        false
    }

    /// Whether the server does not accept the credentials of this process, or there are none.
    pub fn lacks_credentials(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code() == Code::Unauthenticated)
    }

    /// Whether the server refused the call because a registry of images does not answer. A later attempt may succeed.
    pub fn is_registry_unavailable(&self) -> bool {
        match self {
            Self::Refused { status, .. } => is_registry_unavailable(status),
            Self::Missing { .. }
            | Self::Unreachable { .. }
            | Self::Lost { .. }
            | Self::File { .. }
            | Self::Answer { .. } => false,
        }
    }

    /// Whether the server was unreachable, so that a later attempt may succeed.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Lost { .. } => !self.is_untrusted(),
            // A status sent by the server has no source: one with a source comes from a broken connection.
            Self::Refused { status, .. } => {
                let is_away = status.code() == Code::Unavailable && !is_registry_unavailable(status);
                is_away || (std::error::Error::source(&**status).is_some() && !self.is_untrusted())
            }
            Self::Missing { .. } | Self::File { .. } | Self::Answer { .. } => false,
        }
    }
}
