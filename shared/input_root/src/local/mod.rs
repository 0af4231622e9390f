//! Folders on the machine of a client: converts their content to blobs.

mod context;
mod scan;
mod walk;

use std::{io, path::Path};

pub use context::scan_context;
pub use scan::{Scanned, Source, scan};
pub use walk::walk;

/// A folder could not be read.
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
