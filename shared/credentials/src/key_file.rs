//! Files with random bytes, from which the processes of a farm make the same keys.

use std::{io, path::Path, time::SystemTime};

/// Minimum bytes of a secret.
const BYTES_MIN: u64 = 32;
const BYTES_MAX: u64 = 4096;

/// The content of a key file.
pub struct KeyFile {
    pub secret: Vec<u8>,
    /// Time of its last change.
    pub changed: SystemTime,
}

/// A key file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("cannot read the key {path}")]
    Read {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("the key {path} has {bytes} bytes: expected {BYTES_MIN} to {BYTES_MAX} random ones")]
    Length { path: String, bytes: u64 },
    #[error("no keys can be derived from the key {path}")]
    Unusable { path: String },
}

impl KeyFile {
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        let name = || path.display().to_string();
        let unreadable = |source| KeyFileError::Read { path: name(), source };
        let bytes = disk::regular_bytes(path).map_err(unreadable)?;
        if !(BYTES_MIN..=BYTES_MAX).contains(&bytes) {
            return Err(KeyFileError::Length { path: name(), bytes });
        }
        let changed = std::fs::metadata(path).and_then(|metadata| metadata.modified()).map_err(unreadable)?;
        Ok(Self { secret: std::fs::read(path).map_err(unreadable)?, changed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_key_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert!(matches!(KeyFile::read(&path), Err(KeyFileError::Read { .. })));
        std::fs::write(&path, "short").unwrap();
        assert!(matches!(KeyFile::read(&path), Err(KeyFileError::Length { bytes: 5, .. })));
        std::fs::write(&path, [1; 32]).unwrap();
        assert_eq!(KeyFile::read(&path).unwrap().secret, [1; 32]);
    }
}
