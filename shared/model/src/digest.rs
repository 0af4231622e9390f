//! SHA-256 digests of content in the farm's store.

use std::{fmt, str::FromStr};

use invariant::Present as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{BlobDigest, DigestFunction, blob::decode_hex, hex};

/// SHA-256 of some content, written `sha256:` and 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Digest(#[schemars(regex(pattern = r"^sha256:[0-9a-f]{64}$"))] String);

/// A text that is not a valid digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid digest {0:?}: expected sha256: and 64 hex digits")]
pub struct ParseDigestError(String);

const PREFIX: &str = "sha256:";

impl Digest {
    pub fn of(content: &[u8]) -> Self {
        Self::from_sha256(Sha256::digest(content).into())
    }

    /// The digest with these bytes, a SHA-256 hash.
    pub fn from_sha256(hash: [u8; 32]) -> Self {
        Self(format!("{PREFIX}{}", hex(&hash)))
    }

    /// The hash of a blob, which SHA-256 must have made; images name their blobs so.
    pub fn of_blob(blob: &BlobDigest) -> Self {
        Self::from_sha256(blob.hash)
    }

    /// The digest of a blob of `size` bytes with this hash.
    pub fn of_size(&self, size: u64) -> BlobDigest {
        let hash = decode_hex(self.hex().as_bytes()).present("the bytes of a digest");
        BlobDigest { function: DigestFunction::Sha256, hash, size }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The 64 hex digits, without `sha256:`.
    pub fn hex(&self) -> &str {
        self.0.get(PREFIX.len()..).present("the digits after the prefix of a digest")
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex = text.strip_prefix(PREFIX).unwrap_or(text);
        if hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(Self(format!("{PREFIX}{}", hex.to_ascii_lowercase())));
        }
        Err(ParseDigestError(text.chars().take(100).collect()))
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
