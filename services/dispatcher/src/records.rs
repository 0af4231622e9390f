//! Lifecycle messages as events of the index.

use std::time::Duration;

use bus::{BusError, Stored};
use index::{Change, IndexEvent, Traits};
use model::{
    Attempt, BuildKey, BuildRecord, LifecycleEvent, Priority, RecordHead, WorkerId, Workspace, WorkspaceKeys,
    WorkspaceUse,
};
use policy::{
    avoids_worker, band_rank,
    queue::{UNKNOWN_ESTIMATE_MS, Waiting},
    workspace::live_keys,
};
use settings::DispatcherSettings;
use tracing::debug;

/// The order of a queued build within its priority. It derives from the record alone, so a build has the same place
/// whenever the index is built.
fn rank(settings: &DispatcherSettings, head: &RecordHead, stored: &Stored) -> u64 {
    // Builds differ in the number of executor types that they occupy: the more, the
    // harder they are to place.
    let others = settings.executor_types.saturating_sub(head.occupancy.0.len());
    let waiting = Waiting {
        position: head.queue.first_sequence.unwrap_or(stored.sequence).0,
        arrived_ms: head.submitted_at_ms.0,
        estimate_ms: head.expected_ms.unwrap_or(UNKNOWN_ESTIMATE_MS),
        flexibility: u32::try_from(others).unwrap_or(u32::MAX).saturating_add(1),
    };
    band_rank(settings.band_order_of(head.priority), &waiting)
}

/// Names of the orders of all queues, by priority: an index built with other orders is rebuilt.
pub(crate) fn order_of_queues(settings: &DispatcherSettings) -> String {
    let orders = Priority::ALL.map(|priority| settings.band_order_of(priority).as_str());
    orders.join(" ")
}

/// What a lifecycle message says.
pub(crate) struct BuildEvent {
    pub(crate) event: IndexEvent,
    /// The keys of the workspace that the build leaves.
    pub(crate) left: Option<WorkspaceKeys>,
    /// The worker that gave the build back because of a fault of its own.
    pub(crate) avoid: Option<WorkerId>,
}

/// Parses a lifecycle message.
pub(crate) fn read(stored: &Stored, settings: &DispatcherSettings) -> Result<BuildEvent, BusError> {
    let head: RecordHead = stored.read()?;
    let faulty = head.queue.retry.as_ref().filter(|retry| avoids_worker(retry.reason.code));
    let avoid = faulty.map(|retry| retry.worker.clone());
    let rank = rank(settings, &head, stored);
    let workspace = head
        .invocation
        .as_ref()
        .map(|invocation| Workspace { worker: invocation.worker.clone(), slot: invocation.workspace });
    let traits = Traits {
        warm: !head.workspace.is_fresh(),
        sends_actions: head.sends_actions,
        occupancy: head.occupancy,
        expected_ms: head.expected_ms,
        requirements: head.requirements,
    };
    let mut left = None;
    let change = match (head.event, head.invocation, workspace) {
        (LifecycleEvent::Enqueued, _, _) => Change::Enqueued {
            priority: head.priority,
            rank,
            first: head.queue.first_sequence.is_none(),
            expires_at: head.queue.expires_at_ms,
            traits,
        },
        (LifecycleEvent::Started, Some(invocation), Some(workspace)) => Change::Started {
            started_at: invocation.started_at_ms,
            deadline: invocation
                .started_at_ms
                .after(Duration::from_secs(head.timeout_seconds))
                .after(settings.overrun),
            workspace,
            traits,
        },
        // No process writes a start without an invocation; such a build has no workspace.
        (LifecycleEvent::Started | LifecycleEvent::Finished, _, workspace) => {
            let only =
                workspace.is_none() && head.attempt == Attempt::FIRST && head.queue.first_sequence.is_none();
            left = left_by(stored, head.workspace);
            Change::Finished { ended_at: head.at_ms, workspace, only }
        }
    };
    let key = BuildKey { group: head.group, id: head.id };
    Ok(BuildEvent { event: IndexEvent { key, sequence: stored.sequence, change }, left, avoid })
}

/// The keys that an ended build leaves for the next build in its workspace, from its lifecycle message.
fn left_by(stored: &Stored, requested: WorkspaceUse) -> Option<WorkspaceKeys> {
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
