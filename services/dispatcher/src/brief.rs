//! The few fields of a lifecycle message that the index wants: a million of them are read in a rebuild.

use std::time::Duration;

use bus::{BusError, DecodeError, Stored};
use index::{Change, IndexEvent, Traits};
use model::{
    Attempt, BandOrder, BuildId, BuildKey, Group, Millis, Occupancy, Priority, Sequence, WorkerId, Workspace,
    WorkspaceKeys, WorkspaceUse,
};
use policy::band_rank;
use serde::Deserialize;

use crate::warm::left_by;

#[derive(Deserialize)]
struct Brief {
    id: BuildId,
    group: Group,
    priority: Priority,
    attempt: Attempt,
    at_ms: Millis,
    timeout_seconds: u64,
    #[serde(default)]
    workspace: WorkspaceUse,
    #[serde(default)]
    occupancy: Occupancy,
    event: Event,
    queue: BriefQueue,
    #[serde(default)]
    invocation: Option<BriefInvocation>,
}

#[derive(Deserialize)]
enum Event {
    #[serde(rename = "BUILD_ENQUEUED")]
    Enqueued,
    #[serde(rename = "INVOCATION_STARTED")]
    Started,
    #[serde(rename = "INVOCATION_FINISHED")]
    Finished,
}

#[derive(Deserialize)]
struct BriefQueue {
    #[serde(default)]
    first_sequence: Option<Sequence>,
    expires_at_ms: Millis,
}

#[derive(Deserialize)]
struct BriefInvocation {
    worker: WorkerId,
    workspace: u16,
    started_at_ms: Millis,
}

/// Reads a lifecycle message, and what it tells of the workspace that a build leaves. `overrun` is what a run may take
/// beyond its own timeout.
pub(crate) fn read(
    stored: &Stored,
    overrun: Duration,
    order: BandOrder,
) -> Result<(IndexEvent, Option<WorkspaceKeys>), BusError> {
    let brief: Brief = serde_json::from_slice(&stored.payload).map_err(|error| BusError::Corrupt {
        sequence: stored.sequence.0,
        subject: stored.subject.clone(),
        source: DecodeError::Json(error),
    })?;
    let workspace = brief
        .invocation
        .as_ref()
        .map(|invocation| Workspace { worker: invocation.worker.clone(), slot: invocation.workspace });
    let traits = Traits { warm: !brief.workspace.is_fresh(), occupancy: brief.occupancy };
    let mut left = None;
    let change = match (brief.event, brief.invocation, workspace) {
        (Event::Enqueued, _, _) => Change::Enqueued {
            priority: brief.priority,
            rank: band_rank(order, brief.queue.first_sequence.unwrap_or(stored.sequence)),
            first: brief.queue.first_sequence.is_none(),
            expires_at: brief.queue.expires_at_ms,
            traits,
        },
        (Event::Started, Some(invocation), Some(workspace)) => Change::Started {
            started_at: invocation.started_at_ms,
            deadline: invocation
                .started_at_ms
                .after(Duration::from_secs(brief.timeout_seconds))
                .after(overrun),
            workspace,
            traits,
        },
        // A start without an invocation is written by nobody; the build is then no workspace's.
        (Event::Started | Event::Finished, _, workspace) => {
            let only = workspace.is_none()
                && brief.attempt == Attempt::FIRST
                && brief.queue.first_sequence.is_none();
            left = left_by(stored, brief.workspace);
            Change::Finished { ended_at: brief.at_ms, workspace, only }
        }
    };
    let key = BuildKey { group: brief.group, id: brief.id };
    Ok((IndexEvent { key, sequence: stored.sequence, change }, left))
}
