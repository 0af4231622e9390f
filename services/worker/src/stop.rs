//! Why a run is to end before its command does.

use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

/// Why a run is to end before its command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Someone else ended the build, or moved it on.
    EndedElsewhere,
    /// The lease is not ours any more.
    LeaseLost,
    /// The worker goes away.
    Drained,
    /// The build fills the disk of the worker.
    FilledDisk {
        /// Bytes of disk that it has.
        bytes: u64,
        /// Bytes of disk that are left.
        left: u64,
        /// Bytes that must be.
        reserve: u64,
    },
}

/// Tells a run to end. The first cause stands.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    token: CancellationToken,
    cause: Arc<Mutex<Option<Cause>>>,
}

impl Stop {
    /// Tells the run to end for `cause`.
    pub(crate) fn now(&self, cause: Cause) {
        let mut standing = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        standing.get_or_insert(cause);
        drop(standing);
        self.token.cancel();
    }

    /// Why it is to end, if it is.
    pub(crate) fn cause(&self) -> Option<Cause> {
        *self.cause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the run is to end.
    pub(crate) async fn wanted(&self) {
        self.token.cancelled().await;
    }
}
