//! Errors of the store.

use std::{io, path::Path, sync::Arc};

use model::{BlobDigest, Digest, Zone};

/// A blob or an action result could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum CasError {
    /// The content does not match its digest. Nothing was stored.
    #[error("blob {wanted} was refused: its content has the digest {found}")]
    Mismatch { wanted: BlobDigest, found: BlobDigest },
    /// More content arrived than the digest states. Nothing was stored.
    #[error("blob {wanted} was refused: more bytes arrived than its digest states")]
    TooLong { wanted: BlobDigest },
    /// The blob exceeds the size limit of the store.
    #[error("blob {digest} is too large: the limit is {max} bytes")]
    TooLarge {
        digest: BlobDigest,
        /// Size limit in bytes.
        max: u64,
    },
    /// The blob is needed whole in memory and exceeds the limit for that.
    #[error("blob {digest} is too large to read at once (limit {max} bytes); read it as a stream")]
    TooLargeAtOnce {
        digest: BlobDigest,
        /// Size limit in bytes.
        max: u64,
    },
    /// The store is out of space, and the keep promise still covers everything in it, or its disk is full.
    #[error(
        "the store is full: everything in it was used recently (cas_keep_min_seconds) and takes up cas_bytes_max, or its \
         disk lacks free space (disk_left_percent); try again later, increase cas_bytes_max or free disk space; \
         `forebay doctor` reports which"
    )]
    Full,
    /// A trust zone has as much as it may have, and the keep promise still covers all of it, or records name it.
    #[error(
        "zone {zone} has as much in the store as it may have (zone_limits), and all of it was used recently \
         (cas_keep_min_seconds) or is kept for builds; try again later, store less, or increase its limit; \
         `forebay doctor` shows what each zone has"
    )]
    ZoneFull { zone: Zone },
    /// The blob alone exceeds the limit of a trust zone.
    #[error(
        "blob {digest} is larger than all that zone {zone} may have in the store: {max} bytes (zone_limits)"
    )]
    AboveZoneLimit {
        digest: BlobDigest,
        zone: Zone,
        /// Limit of the zone in bytes.
        max: u64,
    },
    /// The farm behind the store refused a blob because of the limit of a trust zone.
    #[error("{message}")]
    RefusedForZone { message: String },
    /// A required blob is not in the store.
    #[error("the store has no blob {digest}")]
    Missing { digest: BlobDigest },
    /// A blob that is known by its hash only is not in the store, or cannot be found there without its size.
    #[error("the store has no blob {digest}{}", if *.sized { "" } else { "; its size is needed to find it" })]
    NotFound {
        digest: Digest,
        /// Whether the store can find blobs without their size.
        sized: bool,
    },
    /// The content of a blob is not a message of the required type.
    #[error("blob {digest} is not a valid {wanted}: {why}")]
    Malformed {
        digest: BlobDigest,
        /// Name of the required message type.
        wanted: &'static str,
        why: String,
    },
    /// A chunk and its blob use different digest functions.
    #[error("chunk {chunk} and blob {digest} use different digest functions")]
    MixedFunctions { digest: BlobDigest, chunk: BlobDigest },
    /// The path of a file to store is not a regular file.
    #[error("{path} is not a regular file and cannot be stored")]
    NotAFile { path: String },
    /// The file to store cannot be read.
    #[error("cannot read {path}")]
    Source {
        path: String,
        #[source]
        source: io::Error,
    },
    /// A file-system operation failed.
    #[error("{what} {path} failed")]
    Disk {
        /// The operation that failed, as a participle: "reading".
        what: &'static str,
        path: String,
        #[source]
        source: io::Error,
    },
    /// A call to the object store behind the local tier failed.
    #[error("{what} {key} in the object store failed")]
    Backing {
        /// The operation that failed, as a participle: "reading".
        what: &'static str,
        /// Key of the object.
        key: String,
        #[source]
        source: object_store::Error,
    },
    /// The farm behind the local tier does not answer.
    #[error(
        "the farm's store at {url} does not answer; check that its gateway is running and reachable, or correct \
         cas_url"
    )]
    Unreachable {
        url: String,
        #[source]
        source: Arc<remote::RemoteError>,
    },
    /// The farm behind the local tier refused a call or broke it off.
    #[error("the farm's store at {url} refused a call or broke it off; see its log for the reason")]
    Remote {
        url: String,
        #[source]
        source: Arc<remote::RemoteError>,
    },
    /// The URL does not name a kind of store that this build supports.
    #[error("cas_url {url:?}: {why}")]
    Unsupported { url: String, why: String },
    /// Another process already evicts from this folder.
    #[error("another process already evicts from {path}; only one may run")]
    EvictorRuns { path: String },
    /// The process is shutting down.
    #[error("the store is stopping")]
    Stopping,
}

impl CasError {
    /// Whether the store answers, and does not have the blob as it is wanted; asking again gives the same answer.
    pub fn is_about_content(&self) -> bool {
        match self {
            Self::Mismatch { .. }
            | Self::TooLong { .. }
            | Self::TooLarge { .. }
            | Self::TooLargeAtOnce { .. }
            | Self::AboveZoneLimit { .. }
            | Self::Missing { .. }
            | Self::NotFound { .. }
            | Self::Malformed { .. }
            | Self::MixedFunctions { .. }
            | Self::NotAFile { .. }
            | Self::Source { .. } => true,
            Self::Full
            | Self::ZoneFull { .. }
            | Self::RefusedForZone { .. }
            | Self::Disk { .. }
            | Self::Backing { .. }
            | Self::Unreachable { .. }
            | Self::Remote { .. }
            | Self::Unsupported { .. }
            | Self::EvictorRuns { .. }
            | Self::Stopping => false,
        }
    }

    /// Whether the store or its disk is full.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full)
    }

    /// Whether a trust zone has as much as it may have: no fault of a machine, and no reason to try another one.
    pub fn is_zone_limit(&self) -> bool {
        matches!(self, Self::ZoneFull { .. } | Self::AboveZoneLimit { .. } | Self::RefusedForZone { .. })
    }

    /// The error for `source`, returned while doing `what` to `path`; a full disk becomes [`CasError::Full`].
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
