//! Reads the frames of long console output from the store.

use bytes::Bytes;
use cas::Cas;
use client::Blobs;
use model::BlobDigest;

/// Reads the blobs of frames.
#[derive(Debug, Clone)]
pub struct StoreBlobs(pub Cas);

impl Blobs for StoreBlobs {
    async fn read(&mut self, blob: &BlobDigest) -> Result<Bytes, String> {
        self.0.read_whole(blob, blob.size).await.map_err(|error| error.to_string())
    }
}
