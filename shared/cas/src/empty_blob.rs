//! The empty blob, which every store has.

use model::BlobDigest;

/// Whether this is the digest of the empty blob, which is always present.
pub(crate) fn is_empty(digest: &BlobDigest) -> bool {
    digest.is_empty_blob() && *digest == digest.function.empty()
}
