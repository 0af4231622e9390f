//! Resource names of byte streams, and unique test data.

use model::DigestFunction;
use reapi::execution::Digest;
use uuid::Uuid;

/// Prefix `{instance/}` of a resource name.
fn prefix(instance: &str) -> String {
    if instance.is_empty() { String::new() } else { format!("{instance}/") }
}

/// End `{fn/}{hash}/{size}` of a resource name.
pub(crate) fn tail(function: DigestFunction, digest: &Digest) -> String {
    match function {
        DigestFunction::Sha256 => format!("{}/{}", digest.hash, digest.size_bytes),
        DigestFunction::Blake3 => format!("blake3/{}/{}", digest.hash, digest.size_bytes),
    }
}

/// Resource name for reading a blob.
pub(crate) fn read_name(instance: &str, function: DigestFunction, digest: &Digest) -> String {
    format!("{}blobs/{}", prefix(instance), tail(function, digest))
}

/// Resource name for reading a blob with compression.
pub(crate) fn compressed_read_name(
    instance: &str,
    compressor: &str,
    function: DigestFunction,
    digest: &Digest,
) -> String {
    format!("{}compressed-blobs/{compressor}/{}", prefix(instance), tail(function, digest))
}

/// Resource name for writing a blob.
pub(crate) fn write_name(instance: &str, function: DigestFunction, digest: &Digest) -> String {
    format!("{}uploads/{}/blobs/{}", prefix(instance), Uuid::new_v4(), tail(function, digest))
}

/// Resource name for writing a blob with compression.
pub(crate) fn compressed_write_name(instance: &str, function: DigestFunction, digest: &Digest) -> String {
    let uuid = Uuid::new_v4();
    format!("{}uploads/{uuid}/compressed-blobs/zstd/{}", prefix(instance), tail(function, digest))
}

/// Pseudo-random numbers without quality requirements.
#[derive(Debug, Clone)]
pub(crate) struct Noise(u64);

impl Noise {
    /// Creates a generator with a unique seed.
    pub(crate) fn new() -> Self {
        let (high, low) = Uuid::new_v4().as_u64_pair();
        Self((high ^ low) | 1)
    }

    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() >> 11).unwrap_or_default() % bound.max(1)
    }

    /// Returns bytes that do not compress.
    pub(crate) fn bytes(&mut self, size: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(size + 8);
        while bytes.len() < size {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(size);
        bytes
    }
}

/// Returns content of this size that no other run has.
pub(crate) fn fresh(size: usize) -> Vec<u8> {
    Noise::new().bytes(size)
}

/// Returns a text that no other run has.
pub(crate) fn fresh_text() -> String {
    Uuid::new_v4().simple().to_string()
}
