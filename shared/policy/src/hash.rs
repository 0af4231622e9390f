//! Hash keys computed from texts.

/// Hashes texts with their lengths, so that different lists of texts have different inputs.
#[derive(Clone)]
pub(crate) struct Hasher(blake3::Hasher);

impl Hasher {
    /// Creates a hasher for keys of one purpose, which never equal keys of another purpose.
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

    /// The key of all texts added so far.
    pub(crate) fn key(&self) -> u64 {
        let mut bytes = [0; 8];
        self.0.finalize_xof().fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}
