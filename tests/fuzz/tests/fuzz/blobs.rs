//! Digests as messages have them.

use model::DigestFunction;
use reapi::execution::Digest;

pub(crate) const SHA256: DigestFunction = DigestFunction::Sha256;

/// The digest of a blob with this content.
pub(crate) fn digest(content: &[u8]) -> Digest {
    reapi::digest::to_proto(&SHA256.digest(content))
}
