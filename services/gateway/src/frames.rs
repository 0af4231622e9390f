//! Reads the frames of long console output from the store.

use bytes::Bytes;
use cas::Cas;
use client::{Blobs, Frame};
use model::BlobDigest;

use crate::gateway::Gateway;

/// Reads the blobs of frames.
#[derive(Debug, Clone)]
pub(crate) struct StoreBlobs(pub(crate) Cas);

impl Blobs for StoreBlobs {
    async fn read(&mut self, blob: &BlobDigest) -> Result<Bytes, String> {
        self.0.read_whole(blob, blob.size).await.map_err(|error| error.to_string())
    }
}

/// Reads the output of a frame, or notes why it cannot be read.
pub(crate) async fn fill(gateway: &Gateway, frame: &mut Frame) {
    let blob = match frame.blob() {
        Ok(digest) => StoreBlobs(gateway.cas.clone()).read(&digest).await,
        Err(error) => Err(error),
    };
    frame.fill(blob);
}
