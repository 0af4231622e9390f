//! Digests of blobs in the content-addressable store: hash, function and size together.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::hex;

/// Hash function of a blob digest.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum DigestFunction {
    /// SHA-256, 32 bytes of output.
    #[default]
    Sha256,
    /// BLAKE3 with 32 bytes of output.
    Blake3,
}

impl DigestFunction {
    /// All hash functions that Forebay supports.
    pub const ALL: [Self; 2] = [Self::Sha256, Self::Blake3];

    /// Name in resource names and folders.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Blake3 => "blake3",
        }
    }

    /// Creates a hasher without input.
    pub fn hasher(self) -> BlobHasher {
        let state = match self {
            Self::Sha256 => HasherState::Sha256(Sha256::new()),
            Self::Blake3 => HasherState::Blake3(Box::default()),
        };
        BlobHasher { state, size: 0 }
    }

    pub fn digest(self, content: &[u8]) -> BlobDigest {
        let mut hasher = self.hasher();
        hasher.update(content);
        hasher.finish()
    }

    /// The digest of the empty blob.
    pub fn empty(self) -> BlobDigest {
        self.digest(&[])
    }
}

impl fmt::Display for DigestFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Hashes a blob piece by piece.
#[derive(Debug, Clone)]
pub struct BlobHasher {
    state: HasherState,
    size: u64,
}

#[derive(Debug, Clone)]
enum HasherState {
    Sha256(Sha256),
    Blake3(Box<blake3::Hasher>),
}

impl BlobHasher {
    /// Appends a piece of the blob.
    pub fn update(&mut self, piece: &[u8]) {
        self.size += piece.len() as u64;
        match &mut self.state {
            HasherState::Sha256(hasher) => hasher.update(piece),
            HasherState::Blake3(hasher) => {
                hasher.update(piece);
            }
        }
    }

    /// Number of bytes hashed so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The digest of all bytes hashed so far.
    pub fn finish(self) -> BlobDigest {
        let (function, hash) = match self.state {
            HasherState::Sha256(hasher) => (DigestFunction::Sha256, hasher.finalize().into()),
            HasherState::Blake3(hasher) => (DigestFunction::Blake3, *hasher.finalize().as_bytes()),
        };
        BlobDigest { function, hash, size: self.size }
    }
}

/// Name of a blob: its hash and its size. Written `HASH/SIZE` for SHA-256 and `blake3/HASH/SIZE` for BLAKE3, as in the
/// resource names of the Remote Execution API.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobDigest {
    /// Hash function that made `hash`.
    pub function: DigestFunction,
    pub hash: [u8; 32],
    /// Size of the blob in bytes.
    pub size: u64,
}

/// A text that is not a valid blob digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid digest {text:?}: {wanted}")]
pub struct ParseBlobDigestError {
    text: String,
    wanted: &'static str,
}

impl BlobDigest {
    /// Builds a digest from its protocol parts: 64 lower-case hex digits and a size of 0 bytes or more.
    pub fn from_parts(function: DigestFunction, hash: &str, size: i64) -> Result<Self, ParseBlobDigestError> {
        let wrong = |wanted| ParseBlobDigestError { text: hash.chars().take(80).collect(), wanted };
        let size = u64::try_from(size).map_err(|_| wrong("the size is negative"))?;
        let hash = decode_hex(hash.as_bytes()).ok_or_else(|| wrong("expected 64 lower-case hex digits"))?;
        Ok(Self { function, hash, size })
    }

    /// The hash as 64 lower-case hex digits.
    pub fn hex(&self) -> String {
        hex(&self.hash)
    }

    /// Whether this is the digest of the empty blob, which every store contains.
    pub fn is_empty_blob(&self) -> bool {
        self.size == 0
    }
}

pub(crate) fn decode_hex(text: &[u8]) -> Option<[u8; 32]> {
    let value = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_chunks::<2>();
    if pairs.len() != 32 || !rest.is_empty() {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
        *byte = value(*high)? << 4 | value(*low)?;
    }
    Some(hash)
}

impl fmt::Display for BlobDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.function {
            DigestFunction::Sha256 => {}
            DigestFunction::Blake3 => f.write_str("blake3/")?,
        }
        write!(f, "{}/{}", self.hex(), self.size)
    }
}

impl fmt::Debug for BlobDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for BlobDigest {
    type Err = ParseBlobDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseBlobDigestError {
            text: text.chars().take(80).collect(),
            wanted: "expected HASH/SIZE or blake3/HASH/SIZE",
        };
        let (function, rest) = match text.strip_prefix("blake3/") {
            Some(rest) => (DigestFunction::Blake3, rest),
            None => (DigestFunction::Sha256, text),
        };
        let (hash, size) = rest.split_once('/').ok_or_else(wrong)?;
        if !size.bytes().all(|c| c.is_ascii_digit()) {
            return Err(wrong());
        }
        Self::from_parts(function, hash, size.parse().map_err(|_| wrong())?)
    }
}

impl Serialize for BlobDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BlobDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for BlobDigest {
    fn schema_name() -> Cow<'static, str> {
        "BlobDigest".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^(blake3/)?[0-9a-f]{64}/[0-9]+$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_what_it_writes() {
        for function in DigestFunction::ALL {
            let digest = function.digest(b"some content");
            assert_eq!(digest.to_string().parse(), Ok(digest));
            assert_eq!(BlobDigest::from_parts(function, &digest.hex(), 12), Ok(digest));
        }
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855/0";
        assert_eq!(DigestFunction::Sha256.empty().to_string(), empty);
    }

    #[test]
    fn only_lower_case_hex_of_full_length_is_a_hash() {
        let good = DigestFunction::Sha256.digest(b"x").hex();
        for bad in [good.to_uppercase(), good[1..].to_owned(), format!("{good}0"), good.replace('a', "g")] {
            if bad != good {
                assert!(BlobDigest::from_parts(DigestFunction::Sha256, &bad, 1).is_err(), "{bad}");
            }
        }
        assert!(BlobDigest::from_parts(DigestFunction::Sha256, &good, -1).is_err());
        assert!(format!("{good}/+1").parse::<BlobDigest>().is_err());
    }
}
