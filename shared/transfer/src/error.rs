//! Why files were not transferred.

use std::{io, path::PathBuf};

use input_root::local::LocalError;
use model::BlobDigest;
use remote::RemoteError;
use tokio::task::JoinError;

/// A failed upload or download.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The folder has no such files, or they cannot be inputs.
    #[error(transparent)]
    Scan(LocalError),
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{what}")]
    Thread {
        /// The work that panicked.
        what: &'static str,
        source: JoinError,
    },
    #[error("cannot create {}", path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("cannot create the link {}", path.display())]
    Link { path: PathBuf, source: io::Error },
    /// The server returned a tree without one of its folders.
    #[error("folder {digest} is missing in its tree")]
    Incomplete { digest: BlobDigest },
    #[error(transparent)]
    Remote(#[from] RemoteError),
}

impl TransferError {
    /// Whether the cause may be a file that changed between its scan and its upload.
    pub fn may_be_a_change(&self) -> bool {
        match self {
            Self::Scan(LocalError::Io { source, .. }) | Self::Read { source, .. } => {
                source.kind() == io::ErrorKind::NotFound
            }
            Self::Remote(error) => matches!(error, RemoteError::File { .. }) || error.is_invalid_request(),
            Self::Scan(_)
            | Self::Thread { .. }
            | Self::Create { .. }
            | Self::Link { .. }
            | Self::Incomplete { .. } => false,
        }
    }
}
