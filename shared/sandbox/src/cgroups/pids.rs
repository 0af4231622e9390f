//! The control group that limits the number of processes and threads.

use std::fs;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::number_in;
use crate::error::SandboxError;

/// The kernel's maximum number of processes and threads. It refuses a higher limit.
const KERNEL_MAX: u64 = 4_194_304;

#[derive(Debug)]
pub(super) struct Pids {
    folder: PathBuf,
    /// The limit for all processes in the group.
    usual: Option<u64>,
    before: Mutex<Before>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Before {
    limit: Option<u64>,
    /// Whether the limit may not apply, because it could not be written.
    unsure: bool,
    refused: u64,
}

impl Pids {
    pub(super) fn new(folder: PathBuf, usual: Option<u64>) -> Result<Self, SandboxError> {
        let pids = Self { folder, usual, before: Mutex::default() };
        // A predecessor may have left a limit.
        pids.write(usual)?;
        Ok(pids)
    }

    /// Whether there is a limit even if a command requests none.
    pub(super) fn limits(&self) -> bool {
        self.usual.is_some()
    }

    /// Before a run that may have `limit` processes and threads in addition to the existing ones.
    pub(super) fn begin(&self, limit: Option<u64>) -> Result<(), SandboxError> {
        let current = || number_in(&self.folder.join("pids.current"), "");
        // If the number cannot be read, the limit includes the existing ones.
        self.begin_total(limit.map(|limit| limit.saturating_add(current().unwrap_or_default())))
    }

    /// Before a run during which all processes and threads of the group may be `limit`.
    pub(super) fn begin_total(&self, limit: Option<u64>) -> Result<(), SandboxError> {
        let mut before = self.before.lock();
        if before.unsure || before.limit != limit {
            before.unsure = true;
            self.write(limit.into_iter().chain(self.usual).min())?;
            before.limit = limit;
            before.unsure = false;
        }
        if limit.or(self.usual).is_some() {
            before.refused = self.refused();
        }
        Ok(())
    }

    /// Whether a process was refused since the run began.
    pub(super) fn is_over(&self) -> bool {
        let before = *self.before.lock();
        before.limit.or(self.usual).is_some() && self.refused() > before.refused
    }

    fn write(&self, limit: Option<u64>) -> Result<(), SandboxError> {
        let limit = limit.filter(|limit| *limit < KERNEL_MAX);
        let text = limit.map_or("max".to_owned(), |limit| limit.to_string());
        let file = self.folder.join("pids.max");
        fs::write(&file, text).map_err(|source| SandboxError::file("writing", file, source))
    }

    /// Number of processes that were ever refused here.
    fn refused(&self) -> u64 {
        // Without the file no refusal is noticed; the limit itself still applies.
        number_in(&self.folder.join("pids.events"), "max ").unwrap_or_default()
    }
}
