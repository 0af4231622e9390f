//! What stops `forebay up`.

use std::{future::Future, pin::Pin};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::UpError;

/// Receives SIGTERM, SIGINT, and one other request to stop.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Whether that request came: then the first signal is not another one.
    other_came: bool,
    /// None: it came, or counts no more.
    other: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Signals {
    /// Listens for the signals, which no longer end the process on their own, and for the end of `other`.
    pub(crate) fn listen(other: impl Future<Output = ()> + Send + 'static) -> Result<Self, UpError> {
        let on =
            |kind| signal(kind).map_err(|source| UpError::System { what: "listening for signals", source });
        let (terminate, interrupt) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, other_came: false, other: Some(Box::pin(other)) })
    }

    /// Waits for the next request to stop.
    pub(crate) async fn next(&mut self) {
        let other = async {
            match &mut self.other {
                Some(other) => other.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = other => (self.other, self.other_came) = (None, true),
        }
    }

    /// After the first request to stop, waits for a signal that is another one.
    pub(crate) async fn another(&mut self) {
        self.other = None;
        if std::mem::take(&mut self.other_came) {
            self.next().await;
        }
        self.next().await;
    }
}
