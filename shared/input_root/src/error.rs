//! What can go wrong with input roots and outputs.

use std::{io, path::Path};

use cas::CasError;
use model::BlobDigest;

/// An input root that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// Blobs of the input root are not in the store: all that could be found missing.
    #[error("{} blobs of the input root are not in the store, {} among them; upload them again", .0.len(), .0.first().map_or(String::new(), ToString::to_string))]
    Missing(Vec<BlobDigest>),
    /// The action cannot be run anywhere: its input root or its paths are not valid.
    #[error("{0}")]
    Invalid(String),
    /// The disk failed.
    #[error("{what} {path} failed")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The store failed.
    #[error(transparent)]
    Cas(#[from] CasError),
    /// The process is stopping.
    #[error("the process is stopping")]
    Stopping,
}

impl InputError {
    /// What makes the error for `what` on `path`.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.display().to_string(), source }
    }
}

/// Outputs that could not be kept. All paths are as the client named them.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// An output that was asked for as a file is a directory, or the other way round.
    #[error("output {path:?} is a {found}, and a {wanted} was asked for")]
    WrongKind {
        /// The output.
        path: String,
        /// What it was asked for as.
        wanted: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A symlink with an absolute target, where those are not allowed.
    #[error("output {path:?} is a symlink with the absolute target {target:?}, which is not allowed")]
    AbsoluteTarget {
        /// The symlink.
        path: String,
        /// Its target.
        target: String,
    },
    /// Something that cannot be kept.
    #[error("output {path:?} is a {kind}, which cannot be kept")]
    Special {
        /// The output.
        path: String,
        /// What it is.
        kind: &'static str,
    },
    /// The way to an output leads out of the input root.
    #[error(
        "output {path:?} lies outside of the input root: a directory on its way is a symlink that leads out of it"
    )]
    Outside {
        /// The output.
        path: String,
    },
    /// A name that the protocol cannot carry.
    #[error("output {path:?} has a name or target that is not UTF-8")]
    NotText {
        /// The output, as well as it can be written.
        path: String,
    },
    /// More than is kept.
    #[error("there are more than {max} files and directories in the outputs")]
    TooMany {
        /// The limit.
        max: u64,
    },
    /// Deeper than is kept.
    #[error("output {path:?} is nested deeper than {max} directories")]
    TooDeep {
        /// The output.
        path: String,
        /// The limit.
        max: u32,
    },
    /// The disk failed.
    #[error("{what} {path} failed")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The store failed.
    #[error(transparent)]
    Cas(#[from] CasError),
    /// The process is stopping.
    #[error("the process is stopping")]
    Stopping,
}

impl CollectError {
    /// What makes the error for `what` on `path`.
    pub(crate) fn io(what: &'static str, path: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    /// Whether the action is to blame, so that another attempt would end the same: `FAILED_PRECONDITION`.
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
