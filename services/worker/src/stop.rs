//! Why a run must end before its command does.

use std::sync::Arc;

use disk::Resource;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Why a run must end before its command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Another process ended or requeued the build.
    EndedElsewhere,
    /// The lease was lost to expiry or to another worker.
    LeaseLost,
    /// The worker shuts down.
    Drained,
    /// The build fills the disk of the worker.
    FilledDisk {
        /// What the disk runs out of.
        resource: Resource,
        /// Amount that the build uses.
        used: u64,
        /// Amount that is left.
        left: u64,
        /// Amount that must stay free.
        reserve: u64,
    },
    /// The files of the build are larger than they may be, in bytes.
    OverDisk { used: u64, allowed: u64 },
}

impl Cause {
    /// Whether the run ends because of the size of its own files.
    pub(crate) fn is_of_own_files(self) -> bool {
        matches!(self, Self::FilledDisk { .. } | Self::OverDisk { .. })
    }
}

/// Handle that stops a run. Only the first cause counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    token: CancellationToken,
    cause: Arc<Mutex<Option<Cause>>>,
}

impl Stop {
    /// Stops the run for `cause`.
    pub(crate) fn now(&self, cause: Cause) {
        let mut standing = self.cause.lock();
        standing.get_or_insert(cause);
        drop(standing);
        self.token.cancel();
    }

    /// The cause, if the run was stopped.
    pub(crate) fn cause(&self) -> Option<Cause> {
        *self.cause.lock()
    }

    /// Returns when the run is stopped.
    pub(crate) async fn wanted(&self) {
        self.token.cancelled().await;
    }
}
