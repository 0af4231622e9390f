//! Being told to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::UpError;

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on these signals end nothing by themselves.
    pub(super) fn listen() -> Result<Self, UpError> {
        let on =
            |kind| signal(kind).map_err(|source| UpError::System { what: "listening for signals", source });
        Ok(Self { terminate: on(SignalKind::terminate())?, interrupt: on(SignalKind::interrupt())? })
    }

    /// Returns at the next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
