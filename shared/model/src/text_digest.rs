//! Ids that are digests of texts: the first half of a SHA-256 as hexadecimal digits.

use sha2::{Digest as _, Sha256};

use crate::hex;

/// Number of hexadecimal digits of an id.
const DIGITS: usize = 32;

/// Computes an id. Texts are hashed with their lengths, so that different lists of texts have different inputs.
#[derive(Default)]
pub(crate) struct TextDigest(Sha256);

impl TextDigest {
    /// Adds bytes of a constant length.
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.update(bytes);
        self
    }

    /// Adds a text with its length.
    pub(crate) fn text(self, text: &str) -> Self {
        self.bytes(&(text.len() as u64).to_le_bytes()).bytes(text.as_bytes())
    }

    /// The id of what was added.
    pub(crate) fn id(self) -> String {
        let bytes: [u8; 32] = self.0.finalize().into();
        let mut text = hex(&bytes);
        text.truncate(DIGITS);
        text
    }
}

/// Whether a text is such an id.
pub(crate) fn is_text_digest(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
