//! Records which builds the idle workspaces are warm for. Hints only: the index decides whether a workspace is idle,
//! its worker whether it is warm.

use std::sync::Arc;

use bus::Stored;
use index::{Change, IndexEvent};
use model::{BuildRecord, Heartbeat, WorkerStatus, Workspace, WorkspaceKeys, WorkspaceState, WorkspaceUse};
use parking_lot::Mutex;
use policy::workspace::{Assignment, BuildKeys, IdleWorkspaces, live_keys};
use tracing::debug;

/// Shared by the loops of a dispatcher.
#[derive(Clone, Default)]
pub(crate) struct Warm(Arc<Mutex<IdleWorkspaces<Workspace>>>);

impl Warm {
    /// Updates the workspaces of a worker from its heartbeat.
    pub(crate) fn announce(&self, heartbeat: &Heartbeat) {
        let mut idle = self.0.lock();
        for (slot, state) in (0_u16..).zip(&heartbeat.workspaces) {
            let workspace = Workspace { worker: heartbeat.worker.clone(), slot };
            match (heartbeat.status, state) {
                (WorkerStatus::Ready, WorkspaceState::Idle { warm }) => idle.insert(workspace, warm.clone()),
                (WorkerStatus::Draining | WorkerStatus::Full | WorkerStatus::Gone, _)
                | (WorkerStatus::Ready, WorkspaceState::Busy { .. } | WorkspaceState::Broken) => {
                    idle.remove(&workspace);
                }
            }
        }
    }

    /// Applies lifecycle events: between two heartbeats they are the only source about a workspace.
    pub(crate) fn follow<'a>(
        &self,
        events: impl Iterator<Item = (&'a IndexEvent, Option<&'a WorkspaceKeys>)>,
    ) {
        let mut idle = self.0.lock();
        for (event, keys) in events {
            match &event.change {
                Change::Started { workspace, .. } => idle.remove(workspace),
                Change::Finished { workspace: Some(workspace), .. } => {
                    idle.insert(workspace.clone(), keys.cloned());
                }
                Change::Finished { workspace: None, .. } | Change::Enqueued { .. } => {}
            }
        }
    }

    /// Removes a workspace that was given to a build, or was found not to be idle.
    pub(crate) fn remove(&self, workspace: &Workspace) {
        self.0.lock().remove(workspace);
    }

    /// Chooses workspaces for `builds`, from the `idle` ones and those that are warm.
    pub(crate) fn assign(
        &self,
        builds: &[Option<BuildKeys>],
        idle: Vec<Workspace>,
    ) -> Vec<Option<Assignment<Workspace>>> {
        self.0.lock().assign(builds, idle)
    }
}

/// The keys that an ended build leaves for the next build in its workspace, from its lifecycle message.
pub(crate) fn left_by(stored: &Stored, requested: WorkspaceUse) -> Option<WorkspaceKeys> {
    if requested.is_fresh() {
        return None;
    }
    let record = stored.record().inspect_err(|error| {
        debug!(error = telemetry::error_chain(error), "cannot read what a build left in its workspace");
    });
    let record: BuildRecord = record.ok()?;
    // Without an exit code it was killed, together with everything that it left running.
    record.result()?.exit_code?;
    // Without a kind, no warm workspace was requested, and nothing is left.
    record.invocation()?.workspace_kind?;
    Some(live_keys(&record.build).workspace)
}
