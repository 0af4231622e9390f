//! Hashes that are computed piece by piece.

use model::{BlobDigest, BlobHasher};

/// A hash, or a check of one, that is computed piece by piece.
pub trait ContentHasher {
    /// What is known at the end of the content.
    type Output;

    /// Appends a piece of the content.
    fn update(&mut self, piece: &[u8]);

    /// The result for all pieces so far.
    fn finish(self) -> Self::Output;
}

impl ContentHasher for BlobHasher {
    type Output = BlobDigest;

    fn update(&mut self, piece: &[u8]) {
        BlobHasher::update(self, piece);
    }

    fn finish(self) -> BlobDigest {
        BlobHasher::finish(self)
    }
}

/// `None` hashes nothing and returns `None`.
impl<H: ContentHasher> ContentHasher for Option<H> {
    type Output = Option<H::Output>;

    fn update(&mut self, piece: &[u8]) {
        if let Some(hasher) = self {
            hasher.update(piece);
        }
    }

    fn finish(self) -> Option<H::Output> {
        self.map(H::finish)
    }
}
