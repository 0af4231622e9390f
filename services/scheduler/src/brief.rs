//! The few fields of an execution's record that the index wants: a rebuild reads all of them.

use bus::{BusError, DecodeError, Stored};
use index::actions::{Change, Event};
use model::{ExecutionId, ExecutionKey, ExecutionRecord, ExecutorId, Group};
use policy::actions::waits_until;
use serde::Deserialize;

#[derive(Deserialize)]
struct Brief {
    execution: BriefExecution,
    event: BriefEvent,
    #[serde(default)]
    executor: Option<ExecutorId>,
}

#[derive(Deserialize)]
struct BriefExecution {
    id: ExecutionId,
    group: Group,
}

#[derive(Deserialize)]
enum BriefEvent {
    #[serde(rename = "ACTION_ACCEPTED")]
    Accepted,
    #[serde(rename = "ACTION_REQUEUED")]
    Requeued,
    #[serde(rename = "ACTION_FINISHED")]
    Finished,
}

/// Reads a record. What is to be offered is read as a whole: an executor must be able to read it too.
pub(crate) fn read(stored: &Stored) -> Result<Event, BusError> {
    let brief: Brief = serde_json::from_slice(&stored.payload).map_err(|error| BusError::Corrupt {
        sequence: stored.sequence.0,
        subject: stored.subject.clone(),
        source: DecodeError::Json(error),
    })?;
    let change = match brief.event {
        BriefEvent::Accepted => waits(stored, &stored.execution()?, false),
        BriefEvent::Requeued => waits(stored, &stored.execution()?, true),
        BriefEvent::Finished => Change::Finished { executor: brief.executor },
    };
    let key = ExecutionKey { group: brief.execution.group, id: brief.execution.id };
    Ok(Event { key, sequence: stored.sequence, change })
}

fn waits(stored: &Stored, record: &ExecutionRecord, again: bool) -> Change {
    let execution = &record.execution;
    let since = if again { record.at_ms } else { execution.accepted_at_ms };
    Change::Waits {
        pool: execution.pool.clone(),
        priority: execution.priority,
        place: record.place_at(stored.sequence),
        until: waits_until(execution.accepted_at_ms, execution.expires_at_ms, since),
        record: stored.payload.to_vec(),
    }
}
