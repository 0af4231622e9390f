//! Output files of builds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{BlobDigest, Digest};

/// A kept output file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputFile {
    /// Path of the file relative to the workspace.
    pub path: String,
    /// Digest of the content.
    pub digest: Digest,
    /// Length of the content in bytes.
    pub size_bytes: u64,
    /// Whether the file is executable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
}

impl OutputFile {
    /// Digest of the content in the store.
    pub fn blob(&self) -> BlobDigest {
        self.digest.of_size(self.size_bytes)
    }
}

/// A file that matches an output glob and cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputNotKept {
    /// Path of the file relative to the workspace; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// Why the file cannot be kept.
    pub reason: String,
}
