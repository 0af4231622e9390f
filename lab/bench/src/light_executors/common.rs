//! What all light executors of a farm share.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use model::ExecutionId;
use service::host_name;
use settings::ExecutorSettings;

use crate::ledger::Ledger;

/// How long actions run on their executors.
pub(crate) enum RunTimes {
    /// Each action runs for this time.
    Same(Duration),
    /// The run time of each action; other actions end at once.
    Each(HashMap<ExecutionId, Duration>),
}

impl RunTimes {
    /// The run time of an action.
    pub(super) fn of(&self, id: &ExecutionId) -> Duration {
        match self {
            Self::Same(time) => *time,
            Self::Each(times) => times.get(id).copied().unwrap_or_default(),
        }
    }
}

/// What all executors of a farm share.
pub(super) struct Common {
    pub(super) settings: ExecutorSettings,
    pub(super) host: String,
    pub(super) ledger: Arc<Ledger>,
    pub(super) run: RunTimes,
    is_open: AtomicBool,
}

impl Common {
    /// For executors that report no room yet.
    pub(super) fn new(settings: ExecutorSettings, ledger: Arc<Ledger>, run: RunTimes) -> Self {
        Self { settings, host: host_name(), ledger, run, is_open: AtomicBool::new(false) }
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
