//! Folders on the machine of a client: converts their content to blobs, and outputs of an action back into files.

mod context;
mod download;
mod scan;
mod walk;

use std::{io, path::Path};

pub use context::scan_context;
pub use download::{BlobSource, Downloaded, download};
pub use scan::{Scanned, Source, scan};
pub use walk::walk;

/// A folder could not be read, or outputs could not be written.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// A glob is invalid.
    #[error("invalid glob {pattern:?}: {why}")]
    Pattern { pattern: String, why: String },
    /// A glob matches nothing.
    #[error("glob {pattern:?} matches nothing in {folder}")]
    NoMatch { pattern: String, folder: String },
    /// A file cannot be part of an input root.
    #[error("cannot upload {path}: {why}")]
    NoInput { path: String, why: &'static str },
    /// A result references something forbidden, or is inconsistent.
    #[error("invalid action result: {0}")]
    Result(String),
    /// A blob could not be fetched.
    #[error("cannot fetch blob {digest} of output {path:?}")]
    Fetch {
        digest: model::BlobDigest,
        /// Path of the output.
        path: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file-system operation failed.
    #[error("cannot {what} {path}")]
    Io {
        /// The operation that failed, as an infinitive: "read folder".
        what: &'static str,
        path: String,
        #[source]
        source: io::Error,
    },
}

impl LocalError {
    fn io(what: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().display().to_string();
        move |source| Self::Io { what, path, source }
    }
}
