//! Results of checks of trees.

use model::BlobDigest;

/// The result of [`Cas::check_tree`](crate::Cas::check_tree).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeCheck {
    /// The whole tree is present, and is kept for another [`CasConfig::keep`](crate::CasConfig::keep).
    Complete,
    /// Parts of the tree are missing.
    Missing {
        /// Missing directories and files, at most 10,000.
        digests: Vec<BlobDigest>,
        /// Whether more blobs may be missing than are listed.
        more: bool,
    },
    /// The tree cannot be an input root.
    Faulty(TreeFault),
}

/// The reason why a tree cannot be an input root.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeFault {
    /// A directory cannot be decoded, is not in canonical form, or references something outside of itself.
    #[error("directory {digest} is not valid: {why}")]
    Malformed { digest: BlobDigest, why: String },
    #[error("the tree is nested deeper than {max} directories")]
    TooDeep {
        /// Maximum depth in directories.
        max: u32,
    },
    #[error("the distinct directories of the tree have more than {max} entries")]
    TooLarge {
        /// Maximum number of entries.
        max: u64,
    },
}
