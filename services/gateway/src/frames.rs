//! Reads the frames of long console output from the store.

use client::Frame;

use crate::gateway::Gateway;

/// Reads the output of a frame, or notes why it cannot be read.
pub(crate) async fn fill(gateway: &Gateway, frame: &mut Frame) {
    let blob = match frame.blob() {
        Ok(digest) => gateway.cas.read_whole(&digest, digest.size).await.map_err(|error| error.to_string()),
        Err(error) => Err(error),
    };
    frame.fill(blob);
}
