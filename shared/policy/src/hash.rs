//! Keys made of texts.

/// Hashes texts so that no two lists of them look the same.
#[derive(Clone)]
pub(crate) struct Hasher(blake3::Hasher);

impl Hasher {
    /// For keys of one purpose: those of another never equal them.
    pub(crate) fn new(purpose: &str) -> Self {
        Self(blake3::Hasher::new()).text(purpose)
    }

    pub(crate) fn text(mut self, text: &str) -> Self {
        self.0.update(&(text.len() as u64).to_le_bytes());
        self.0.update(text.as_bytes());
        self
    }

    pub(crate) fn all<'a>(mut self, texts: impl ExactSizeIterator<Item = &'a str>) -> Self {
        self.0.update(&(texts.len() as u64).to_le_bytes());
        texts.fold(self, Self::text)
    }

    /// The key of all that was given.
    pub(crate) fn key(&self) -> u64 {
        let mut bytes = [0; 8];
        self.0.finalize_xof().fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}
