//! What all light executors of a farm share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use model::Pool;
use service::host_name;
use settings::ExecutorSettings;

use crate::ledger::Ledger;

/// What all executors of a farm share.
pub(super) struct Common {
    pub(super) settings: ExecutorSettings,
    pub(super) pool: Pool,
    pub(super) host: String,
    pub(super) ledger: Arc<Ledger>,
    /// Run time of each action.
    pub(super) run: Duration,
    is_open: AtomicBool,
}

impl Common {
    /// For executors that report no room yet.
    pub(super) fn new(settings: ExecutorSettings, pool: Pool, ledger: Arc<Ledger>, run: Duration) -> Self {
        Self { settings, pool, host: host_name(), ledger, run, is_open: AtomicBool::new(false) }
    }

    /// Whether the executors report the room that they have.
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Lets the executors report the room that they have.
    pub(super) fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }
}
