//! Signals that stop `forebay up`.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::UpError;

/// Receives SIGTERM and SIGINT.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens for the signals, which no longer end the process on their own.
    pub(crate) fn listen() -> Result<Self, UpError> {
        let on =
            |kind| signal(kind).map_err(|source| UpError::System { what: "listening for signals", source });
        Ok(Self { terminate: on(SignalKind::terminate())?, interrupt: on(SignalKind::interrupt())? })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
