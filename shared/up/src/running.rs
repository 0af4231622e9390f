//! What the workers of this `up` say of themselves, queried from the workers so that the answer is current.

use std::{collections::BTreeMap, time::Duration};

use bus::{Bus, Subject};
use model::{BuildKey, Heartbeat, WorkerId, WorkerStatus, WorkspaceState};
use service::host_name;
use tokio::time::Instant;
use tracing::debug;

/// Time limit for the answers of all workers.
const ANSWERS: Duration = Duration::from_secs(1);

/// Running builds by worker, for workers with a process id in `pids`. Workers that do not answer in time are omitted.
pub(crate) async fn running(bus: &Bus, pids: &[u32]) -> BTreeMap<WorkerId, Vec<BuildKey>> {
    let builds = |beat: Heartbeat| {
        let of = |workspace| match workspace {
            WorkspaceState::Busy { group, id } => Some(BuildKey { group, id }),
            WorkspaceState::Idle { .. } | WorkspaceState::Closed { .. } | WorkspaceState::Broken => None,
        };
        beat.workspaces.into_iter().filter_map(of).collect()
    };
    heartbeats(bus, pids).await.into_iter().map(|(worker, beat)| (worker, builds(beat))).collect()
}

/// The heartbeats of workers with a process id in `pids`, of those that answer in time.
pub(crate) async fn heartbeats(bus: &Bus, pids: &[u32]) -> BTreeMap<WorkerId, Heartbeat> {
    let mut found = BTreeMap::new();
    let mut beats = match bus.listen::<Heartbeat>(&()).await {
        Ok(beats) => beats,
        Err(error) => {
            debug!(error = telemetry::error_chain(&error), "cannot subscribe to heartbeats");
            return found;
        }
    };
    if let Err(error) = bus.signal(&Subject::Announce).await {
        debug!(error = telemetry::error_chain(&error), "cannot ask the workers for heartbeats");
    }
    let until = Instant::now() + ANSWERS;
    let host = host_name();
    while found.len() < pids.len()
        && let Ok(Some(message)) = tokio::time::timeout_at(until, beats.next()).await
    {
        let beat = message.content;
        if beat.host != host || !pids.contains(&beat.pid) || beat.status == WorkerStatus::Gone {
            continue;
        }
        found.insert(beat.worker.clone(), beat);
    }
    found
}
