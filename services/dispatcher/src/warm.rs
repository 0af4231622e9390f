//! What is known of idle workspaces: which builds they are warm for. Hints only: that a workspace is idle is decided in the
//! index, that it is warm by its worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bus::Stored;
use index::{Change, IndexEvent};
use model::{BuildRecord, Heartbeat, WorkerStatus, Workspace, WorkspaceKeys, WorkspaceState, WorkspaceUse};
use policy::workspace::{Assignment, BuildKeys, IdleWorkspaces, live_keys};

/// Shared by the loops of a dispatcher.
#[derive(Clone, Default)]
pub(crate) struct Warm(Arc<Mutex<IdleWorkspaces<Workspace>>>);

impl Warm {
    fn lock(&self) -> MutexGuard<'_, IdleWorkspaces<Workspace>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a worker's own word.
    pub(crate) fn announce(&self, heartbeat: &Heartbeat) {
        let mut idle = self.lock();
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

    /// Takes lifecycle events: between two heartbeats nothing else tells what became of a workspace.
    pub(crate) fn follow<'a>(
        &self,
        events: impl Iterator<Item = (&'a IndexEvent, Option<&'a WorkspaceKeys>)>,
    ) {
        let mut idle = self.lock();
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

    /// A workspace that was given to a build, or was found not to be idle.
    pub(crate) fn remove(&self, workspace: &Workspace) {
        self.lock().remove(workspace);
    }

    /// Workspaces for `builds`, from the `idle` ones and those that are warm.
    pub(crate) fn assign(
        &self,
        builds: &[Option<BuildKeys>],
        idle: Vec<Workspace>,
    ) -> Vec<Option<Assignment<Workspace>>> {
        self.lock().assign(builds, idle)
    }
}

/// What a build that ended leaves to the next one in its workspace, as a lifecycle message tells.
pub(crate) fn left_by(stored: &Stored, asked: WorkspaceUse) -> Option<WorkspaceKeys> {
    if asked.is_fresh() {
        return None;
    }
    let record: BuildRecord = stored.record().ok()?;
    // Without an exit code it was killed, and all that it left with it.
    record.result()?.exit_code?;
    // Without a kind none was looked for, and nothing is left.
    record.invocation()?.workspace_kind?;
    Some(live_keys(&record.build).workspace)
}
