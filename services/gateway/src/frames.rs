//! Reads the frames of long console output from the store.

use client::{Frame, WatchBody, WatchEvent};

use crate::gateway::Gateway;

/// Reads the output of an event that is in the store.
pub(crate) async fn fill_event(gateway: &Gateway, event: &mut WatchEvent) {
    if let WatchBody::Frame(frame) = &mut event.body {
        fill(gateway, frame).await;
    }
}

/// Reads the output of a frame.
pub(crate) async fn fill(gateway: &Gateway, frame: &mut Frame) {
    let blob = match frame.blob() {
        Some(digest) => gateway.cas.read_whole(&digest, digest.size).await.map_err(|error| error.to_string()),
        None => Err("it is larger than a frame can be".to_owned()),
    };
    frame.fill(blob);
}
