//! The few fields of a lifecycle message that the index needs: a rebuild reads a million messages.

use std::time::Duration;

use bus::{BusError, Stored};
use index::{Change, IndexEvent, Traits};
use model::{
    Attempt, BuildId, BuildKey, Group, Millis, Occupancy, Priority, Sequence, WorkerId, Workspace,
    WorkspaceKeys, WorkspaceUse,
};
use policy::{
    band_rank,
    queue::{UNKNOWN_ESTIMATE_MS, Waiting},
};
use serde::Deserialize;
use settings::Settings;

use crate::warm::left_by;

#[derive(Deserialize)]
struct RecordFields {
    id: BuildId,
    group: Group,
    priority: Priority,
    attempt: Attempt,
    at_ms: Millis,
    submitted_at_ms: Millis,
    #[serde(default)]
    expected_ms: Option<u64>,
    timeout_seconds: u64,
    #[serde(default)]
    workspace: WorkspaceUse,
    #[serde(default)]
    occupancy: Occupancy,
    event: EventName,
    queue: QueueFields,
    #[serde(default)]
    invocation: Option<InvocationFields>,
}

#[derive(Deserialize)]
enum EventName {
    #[serde(rename = "BUILD_ENQUEUED")]
    Enqueued,
    #[serde(rename = "INVOCATION_STARTED")]
    Started,
    #[serde(rename = "INVOCATION_FINISHED")]
    Finished,
}

#[derive(Deserialize)]
struct QueueFields {
    #[serde(default)]
    first_sequence: Option<Sequence>,
    expires_at_ms: Millis,
}

#[derive(Deserialize)]
struct InvocationFields {
    worker: WorkerId,
    workspace: u16,
    started_at_ms: Millis,
}

/// The order of a queued build within its priority. It derives from the record alone, so a build has the same place
/// whenever the index is built.
fn rank(settings: &Settings, fields: &RecordFields, stored: &Stored) -> u64 {
    // Any workspace accepts any build. Builds differ in the number of executor types that they occupy: the more, the
    // harder they are to place.
    let others = settings.executor_types.len().saturating_sub(fields.occupancy.0.len());
    let waiting = Waiting {
        position: fields.queue.first_sequence.unwrap_or(stored.sequence).0,
        arrived_ms: fields.submitted_at_ms.0,
        estimate_ms: fields.expected_ms.unwrap_or(UNKNOWN_ESTIMATE_MS),
        flexibility: u32::try_from(others).unwrap_or(u32::MAX).saturating_add(1),
    };
    band_rank(settings.band_order_of(fields.priority), &waiting)
}

/// Names of the orders of all queues, by priority: an index built with other orders is rebuilt.
pub(crate) fn order_of_queues(settings: &Settings) -> String {
    let orders = Priority::ALL.map(|priority| settings.band_order_of(priority).as_str());
    orders.join(" ")
}

/// Parses a lifecycle message, and the keys of the workspace that the build leaves.
pub(crate) fn read(
    stored: &Stored,
    settings: &Settings,
) -> Result<(IndexEvent, Option<WorkspaceKeys>), BusError> {
    let fields: RecordFields = stored.read()?;
    let rank = rank(settings, &fields, stored);
    let overrun = Duration::from_secs(settings.overrun_seconds);
    let workspace = fields
        .invocation
        .as_ref()
        .map(|invocation| Workspace { worker: invocation.worker.clone(), slot: invocation.workspace });
    let traits = Traits {
        warm: !fields.workspace.is_fresh(),
        occupancy: fields.occupancy,
        expected_ms: fields.expected_ms,
    };
    let mut left = None;
    let change = match (fields.event, fields.invocation, workspace) {
        (EventName::Enqueued, _, _) => Change::Enqueued {
            priority: fields.priority,
            rank,
            first: fields.queue.first_sequence.is_none(),
            expires_at: fields.queue.expires_at_ms,
            traits,
        },
        (EventName::Started, Some(invocation), Some(workspace)) => Change::Started {
            started_at: invocation.started_at_ms,
            deadline: invocation
                .started_at_ms
                .after(Duration::from_secs(fields.timeout_seconds))
                .after(overrun),
            workspace,
            traits,
        },
        // No process writes a start without an invocation; such a build has no workspace.
        (EventName::Started | EventName::Finished, _, workspace) => {
            let only = workspace.is_none()
                && fields.attempt == Attempt::FIRST
                && fields.queue.first_sequence.is_none();
            left = left_by(stored, fields.workspace);
            Change::Finished { ended_at: fields.at_ms, workspace, only }
        }
    };
    let key = BuildKey { group: fields.group, id: fields.id };
    Ok((IndexEvent { key, sequence: stored.sequence, change }, left))
}
