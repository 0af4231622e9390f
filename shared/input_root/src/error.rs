//! Errors of input roots and outputs.

use std::{io, path::Path};

use cas::CasError;
use model::BlobDigest;

/// An input root could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// Blobs of the input root are not in the store. Lists all that could be found missing.
    #[error("{} blobs of the input root are not in the store, including {}; upload them again", .0.len(), .0.first().map_or(String::new(), ToString::to_string))]
    Missing(Vec<BlobDigest>),
    /// The input root or a path of the action is invalid, so that no worker can run the action.
    #[error("{0}")]
    Invalid(String),
    /// A file-system operation failed.
    #[error("{what} {path} failed")]
    Io {
        /// The operation that failed, as a participle: "reading folder".
        what: &'static str,
        path: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Cas(#[from] CasError),
    /// The process is shutting down.
    #[error("the process is stopping")]
    Stopping,
}

impl InputError {
    /// Returns a function that turns an I/O error of `what` on `path` into an error.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.display().to_string(), source }
    }
}

/// Outputs could not be stored. Paths appear as the client wrote them.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// An output requested as a file is a directory, or the reverse.
    #[error("output {path:?} is a {found}, but the action declares a {wanted}")]
    WrongKind {
        path: String,
        /// The requested kind of output.
        wanted: &'static str,
        /// The actual kind of output.
        found: &'static str,
    },
    /// A symlink has an absolute target where those are not allowed.
    #[error("output {path:?} is a symlink with the absolute target {target:?}, which is not allowed")]
    AbsoluteTarget {
        /// Path of the symlink.
        path: String,
        target: String,
    },
    /// An output has a kind that cannot be stored.
    #[error("output {path:?} is a {kind}, which cannot be stored")]
    Special { path: String, kind: &'static str },
    /// The path of an output leads out of the input root.
    #[error(
        "output {path:?} is outside of the input root: a directory on its path is a symlink that leads out of it"
    )]
    Outside { path: String },
    /// A name cannot be represented in the protocol.
    #[error("output {path:?} has a name or target that is not UTF-8")]
    NotText {
        /// The path with invalid parts replaced.
        path: String,
    },
    /// The outputs exceed the limit of entries.
    #[error("the outputs contain more than {max} files and directories")]
    TooMany {
        /// Maximum number of entries.
        max: u64,
    },
    /// An output exceeds the limit of depth.
    #[error("output {path:?} is nested deeper than {max} directories")]
    TooDeep {
        path: String,
        /// Maximum depth in directories.
        max: u32,
    },
    /// A file-system operation failed.
    #[error("{what} {path} failed")]
    Io {
        /// The operation that failed, as a participle: "reading output".
        what: &'static str,
        path: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Cas(#[from] CasError),
    /// The process is shutting down.
    #[error("the process is stopping")]
    Stopping,
}

impl CollectError {
    /// Returns a function that turns an I/O error of `what` on `path` into an error.
    pub(crate) fn io(what: &'static str, path: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    /// Whether the action caused the error, so that another attempt would fail too: `FAILED_PRECONDITION`.
    pub fn is_the_actions(&self) -> bool {
        match self {
            Self::WrongKind { .. }
            | Self::AbsoluteTarget { .. }
            | Self::Special { .. }
            | Self::Outside { .. }
            | Self::NotText { .. }
            | Self::TooMany { .. }
            | Self::TooDeep { .. } => true,
            Self::Io { .. } | Self::Cas(_) | Self::Stopping => false,
        }
    }
}
