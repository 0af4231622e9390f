//! What can go wrong with the store.

use std::{io, path::Path, sync::Arc};

use model::BlobDigest;

/// A blob or an action result that could not be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum CasError {
    /// The content is not what its digest says. Nothing was stored.
    #[error("blob {wanted} was refused: its content has the digest {found}")]
    Mismatch {
        /// What was promised.
        wanted: BlobDigest,
        /// What came.
        found: BlobDigest,
    },
    /// More content came than the digest says. Nothing was stored.
    #[error("blob {wanted} was refused: more bytes came than its digest says")]
    TooLong {
        /// What was promised.
        wanted: BlobDigest,
    },
    /// The blob is larger than is allowed.
    #[error("blob {digest} is too large: at most {max} bytes are taken")]
    TooLarge {
        /// Which.
        digest: BlobDigest,
        /// The limit.
        max: u64,
    },
    /// A blob that is needed whole in memory is larger than is allowed there.
    #[error("blob {digest} is too large to be read at once: at most {max} bytes are; read it as a stream")]
    TooLargeAtOnce {
        /// Which.
        digest: BlobDigest,
        /// The limit.
        max: u64,
    },
    /// There is no room, and everything that is there is still promised to somebody.
    #[error(
        "the store is full, and all that it has was used in the last minutes (cas_keep_min_seconds); try again, or give it more \
         room: cas_bytes_max, or where its disk is full, disk_left_percent"
    )]
    Full,
    /// A blob that is needed is not there.
    #[error("the store has no blob {digest}")]
    Missing {
        /// Which.
        digest: BlobDigest,
    },
    /// A blob is not the message it should be.
    #[error("blob {digest} is not a valid {wanted}: {why}")]
    Malformed {
        /// Which.
        digest: BlobDigest,
        /// What it should be.
        wanted: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Chunks and blob are hashed by different functions.
    #[error("chunk {chunk} is not hashed as the blob {digest} is")]
    MixedFunctions {
        /// The blob.
        digest: BlobDigest,
        /// Its chunk.
        chunk: BlobDigest,
    },
    /// A file that is to be kept is not a regular file.
    #[error("{path} is not a regular file and cannot be kept")]
    NotAFile {
        /// Which.
        path: String,
    },
    /// The disk failed.
    #[error("{what} {path} failed")]
    Disk {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The object store behind the local tier failed.
    #[error("{what} {key} in the object store failed")]
    Backing {
        /// What was tried.
        what: &'static str,
        /// On which object.
        key: String,
        /// Why.
        #[source]
        source: object_store::Error,
    },
    /// The farm behind the local tier does not answer.
    #[error(
        "the farm's store at {url} does not answer; see that its gateway runs and can be reached from here, or correct \
         cas_url"
    )]
    Unreachable {
        /// Where.
        url: String,
        /// Why.
        #[source]
        source: Arc<remote::RemoteError>,
    },
    /// The farm behind the local tier refused, or broke off.
    #[error("the farm's store at {url} refused a call or broke it off; its log says why")]
    Remote {
        /// Where.
        url: String,
        /// Why.
        #[source]
        source: Arc<remote::RemoteError>,
    },
    /// The URL names no store that is built in.
    #[error("object store {url:?} cannot be used: {why}")]
    Unsupported {
        /// The URL.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// Another process evicts from this folder.
    #[error("another process evicts from {path} already; one is enough")]
    EvictorRuns {
        /// The folder.
        path: String,
    },
    /// The process is stopping.
    #[error("the store is stopping")]
    Stopping,
}

impl CasError {
    /// The error for `source`, which came of trying `what` on `path`: a full disk is [`CasError::Full`].
    pub(crate) fn disk(what: &'static str, path: &Path, source: io::Error) -> Self {
        if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            return Self::Full;
        }
        Self::Disk { what, path: path.display().to_string(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_a_full_store() {
        let error = |number: nix::errno::Errno| CasError::disk("writing", Path::new("/x"), number.into());
        assert!(matches!(error(nix::errno::Errno::ENOSPC), CasError::Full));
        assert!(matches!(error(nix::errno::Errno::EDQUOT), CasError::Full));
        assert!(matches!(error(nix::errno::Errno::EIO), CasError::Disk { .. }));
    }
}
