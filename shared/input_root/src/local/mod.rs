//! Folders on the machine of a client: what is in them as blobs, and the outputs of an action back into them.

mod download;
mod scan;

use std::{io, path::Path};

pub use download::{BlobSource, Downloaded, download};
pub use scan::{Scanned, Source, scan};

/// A folder that could not be read, or outputs that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// A pattern that is none.
    #[error("pattern {pattern:?} cannot be used: {why}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong.
        why: String,
    },
    /// A pattern that names nothing.
    #[error("pattern {pattern:?} matches nothing in {folder}")]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// Where.
        folder: String,
    },
    /// Something that cannot be an input.
    #[error("{path} cannot be an input: {why}")]
    NoInput {
        /// What.
        path: String,
        /// Why not.
        why: &'static str,
    },
    /// A result that names what it must not, or is not consistent.
    #[error("the result of the action cannot be used: {0}")]
    Result(String),
    /// A blob that could not be fetched.
    #[error("blob {digest} of output {path:?} cannot be fetched")]
    Fetch {
        /// Which.
        digest: model::BlobDigest,
        /// For what.
        path: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
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
}

impl LocalError {
    fn io(what: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().display().to_string();
        move |source| Self::Io { what, path, source }
    }
}
