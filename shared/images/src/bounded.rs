//! The content of a layer: decompressed, counted, and hashed.

use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use archives::{DecompressError, decompress};
use bytes::{Buf as _, Bytes};
use model::Digest;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use crate::error::ImageError;

/// Maximum bytes that a compressed byte may become, and the size from which this is checked: text and zeros of real images
/// become at most a tenth of that.
const RATIO_MAX: u64 = 200;
const RATIO_FROM: u64 = 256 << 20;

/// Pieces of a blob that another task reads. An empty piece is the end.
pub(crate) struct Pieces {
    from: mpsc::Receiver<Bytes>,
    current: Bytes,
    ended: bool,
    /// Whether the other task failed or was stopped.
    broken: Arc<AtomicBool>,
}

impl Pieces {
    pub(crate) fn new(pieces: mpsc::Receiver<Bytes>) -> Self {
        Self { from: pieces, current: Bytes::new(), ended: false, broken: Arc::default() }
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.current.is_empty() && !self.ended {
            let Some(piece) = self.from.blocking_recv() else {
                self.broken.store(true, Ordering::Relaxed);
                return Err(io::Error::other("the store does not give the rest"));
            };
            self.ended = piece.is_empty();
            self.current = piece;
        }
        let count = self.current.len().min(buffer.len());
        self.current.copy_to_slice(buffer.get_mut(..count).unwrap_or_default());
        Ok(count)
    }
}

/// The decompressed content of a layer, of limited size.
pub(crate) struct Bounded {
    content: Box<dyn Read>,
    hash: Sha256,
    /// The digest that the image names.
    wanted: Digest,
    read: u64,
    /// Maximum bytes, by the size of the image and by that of the compressed layer.
    most: u64,
    /// Why reading was stopped.
    refusal: Option<String>,
    /// Whether the store failed.
    broken: Arc<AtomicBool>,
}

impl Bounded {
    /// The content of a layer of `compressed` bytes, of which `most` bytes may be unpacked.
    pub(crate) fn new(
        pieces: Pieces,
        wanted: Digest,
        compressed: u64,
        most: u64,
    ) -> Result<Self, ImageError> {
        let broken = Arc::clone(&pieces.broken);
        let content = decompress(pieces).map_err(|error| match error {
            DecompressError::Unreadable(error) => ImageError::file("reading a layer from the store", error),
            DecompressError::Unsupported => {
                ImageError::Invalid(format!("a layer cannot be unpacked: {error}"))
            }
        })?;
        let of_ratio = compressed.saturating_mul(RATIO_MAX).max(RATIO_FROM);
        Ok(Self {
            content,
            hash: Sha256::new(),
            wanted,
            read: 0,
            most: most.min(of_ratio),
            refusal: None,
            broken,
        })
    }

    /// Why reading was stopped, if it was.
    pub(crate) fn stopped(&mut self) -> Option<ImageError> {
        if self.broken.load(Ordering::Relaxed) {
            let source = io::Error::other("the store failed or the executor stops");
            return Some(ImageError::file("reading a layer from the store", source));
        }
        self.refusal.take().map(ImageError::Invalid)
    }

    /// Reads what follows the archive, and checks the digest.
    pub(crate) fn finish(&mut self) -> Result<(), ImageError> {
        let rest = io::copy(self, &mut io::sink());
        if let Some(error) = self.stopped() {
            return Err(error);
        }
        rest.map_err(|error| ImageError::Invalid(format!("a layer is damaged: {error}")))?;
        let found = Digest::from_sha256(self.hash.finalize_reset().into());
        if found == self.wanted {
            return Ok(());
        }
        Err(ImageError::Invalid(format!("a layer has the digest {found} instead of {}", self.wanted)))
    }
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(buffer)?;
        self.read += count as u64;
        if self.read > self.most {
            let why = format!(
                "it unpacks to more than {} bytes (image_bytes_max, or {RATIO_MAX} times its layer)",
                self.most
            );
            self.refusal = Some(why);
            return Err(io::Error::other("it is too large"));
        }
        self.hash.update(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}
