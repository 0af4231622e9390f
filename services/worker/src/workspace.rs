//! The workspace of one run: its shim, its folder and the lease of its build.

use std::time::Duration;

use model::{Group, WorkspaceKeys};
use tracing::{debug, warn};

use crate::{
    folder::RunFolder,
    guard::Guard,
    lease_keeper::LeaseKeeper,
    warm::{WarmWorkspace, WorkspaceOrigin},
    workspace_shim::WorkspaceShim,
};

/// The workspace of one run.
pub(crate) struct Workspace {
    pub(crate) number: u16,
    pub(crate) shim: WorkspaceShim,
    pub(crate) shim_lives: bool,
    pub(crate) folder: RunFolder,
    pub(crate) lease: LeaseKeeper,
    /// Whether files may be kept for the next build.
    pub(crate) warm: bool,
    /// The state of the workspace before the run.
    pub(crate) origin: WorkspaceOrigin,
    /// Guards processes that the last command left.
    pub(crate) guard: Option<Guard>,
}

/// The state of the workspace after a run.
pub(crate) struct After {
    /// The shim, if it can be used again.
    pub(crate) shim: Option<WorkspaceShim>,
    pub(crate) left: Option<WarmWorkspace>,
}

impl Workspace {
    /// Confirms the end of a shim that died during the run.
    pub(crate) async fn end_dead_shim(&mut self) {
        if !self.shim_lives
            && let Err(error) = self.shim.end().await
        {
            warn!(error = telemetry::error_chain(&error), "cannot confirm the end of a shim");
        }
    }

    /// Stops the remaining processes, or lets them go on; if that fails, all of them end.
    pub(crate) async fn hold(&mut self, hold: bool) {
        if self.shim_lives
            && let Err(error) = self.shim.hold(hold).await
        {
            warn!(error = telemetry::error_chain(&error), "a shim failed to stop its remaining processes");
            self.shim_lives = false;
            self.end_dead_shim().await;
        }
    }

    /// Ends all remaining processes.
    pub(crate) async fn end_processes(&mut self) {
        if self.shim_lives {
            self.shim_lives = forget(&mut self.shim).await;
        }
    }

    /// Leaves the workspace without processes and files; with `set_aside`, its files stay elsewhere for inspection.
    pub(crate) async fn leave_empty(mut self, set_aside: bool) -> After {
        self.end_processes().await;
        let Self { shim, shim_lives, folder, .. } = self;
        folder.clear(set_aside);
        After { shim: shim_lives.then_some(shim), left: None }
    }

    /// Leaves the workspace with its files and processes to similar builds of `group`.
    pub(crate) async fn leave_warm(mut self, group: Group, keys: WorkspaceKeys) -> After {
        if let Some(guard) = self.guard.take() {
            self.shim_lives = guard.release().await;
        }
        self.hold(false).await;
        let Self { shim, shim_lives, folder, .. } = self;
        After { shim: shim_lives.then_some(shim), left: Some(WarmWorkspace { group, keys, folder }) }
    }
}

/// Ends all remaining processes; returns whether the shim lives.
pub(crate) async fn forget(shim: &mut WorkspaceShim) -> bool {
    match shim.forget(Duration::ZERO).await {
        Ok(()) => true,
        Err(error) => {
            warn!(error = telemetry::error_chain(&error), "a shim failed to end its remaining processes");
            if let Err(error) = shim.end().await {
                debug!(error = telemetry::error_chain(&error), "cannot confirm the end of a shim");
            }
            false
        }
    }
}
