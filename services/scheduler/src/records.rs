//! Stored records as the scheduler reads them. Only a few fields of finished executions are read, because a
//! rebuild reads all records.

use std::sync::OnceLock;

use bus::{BusError, Stored};
use index::actions::{Change, Event, MergeKey, Move, Open};
use model::{
    AcceptedHead, ActionOrder, ExecutionEvent, ExecutionHead, ExecutionKey, ExecutionPhase, ExecutionRecord,
    RoomReport,
};

use policy::{
    actions::{place, waits_until},
    queue::Waiting,
};
use tracing::error;

use crate::Shared;

/// Content of a record.
pub(crate) enum RecordContent {
    /// The execution begins to wait. The rest of the record is read if this scheduler applies it.
    Accepted(Box<ExecutionHead>),
    /// The execution has not finished.
    Open(Box<ExecutionRecord>),
    /// The execution has finished.
    Finished(Box<ExecutionHead>),
}

/// A record after it was read.
pub(crate) struct ReadRecord {
    pub(crate) content: RecordContent,
    pub(crate) key: ExecutionKey,
    /// Room of the executor that wrote the record.
    pub(crate) room: Option<RoomReport>,
    stored: Stored,
    event: OnceLock<Option<Event>>,
}

impl ReadRecord {
    /// Reads a record as far as each scheduler needs it.
    pub(crate) fn of(stored: &Stored) -> Result<Self, BusError> {
        let content = read(stored)?;
        let key = match &content {
            RecordContent::Accepted(head) | RecordContent::Finished(head) => head.key(),
            RecordContent::Open(record) => record.execution.key(),
        };
        let room = stored.room();
        // The headers are not needed again.
        let Stored { subject, sequence, at, payload, .. } = stored;
        let (subject, payload) = (subject.clone(), payload.clone());
        let stored = Stored { subject, sequence: *sequence, at: *at, headers: None, payload };
        Ok(Self { content, key, room, stored, event: OnceLock::new() })
    }

    /// The record as an event of the index; `None` if it cannot be read.
    pub(crate) fn event(&self, shared: &Shared) -> Option<&Event> {
        let event = || match event(shared, &self.content, &self.stored) {
            Ok(change) => Some(Event { key: self.key.clone(), sequence: self.stored.sequence, change }),
            Err(error) => {
                // Only a message that Forebay did not write; the others are applied.
                let error = telemetry::error_chain(&error);
                error!(error, key = %self.key, "omitting an unreadable record of an execution");
                None
            }
        };
        self.event.get_or_init(event).as_ref()
    }
}

fn finished(shared: &Shared, head: &ExecutionHead) -> Change {
    let AcceptedHead { group, instance, zone, action, do_not_cache, client, keys, .. } = &head.execution;
    // Other orders do not charge invocations.
    let measured = head.measured.as_ref().filter(|_| shared.order == ActionOrder::Turns);
    Change::Finished {
        executor: head.executor.clone(),
        merge: (!do_not_cache).then(|| MergeKey::named(zone.as_ref(), group, action, instance)),
        beyond: measured.map(|measured| (client.invocation.clone(), shared.learned.beyond(keys, measured))),
    }
}

/// Reads the content of a record.
pub(crate) fn read(stored: &Stored) -> Result<RecordContent, BusError> {
    let head: Box<ExecutionHead> = stored.read()?;
    match head.event {
        ExecutionEvent::Finished => Ok(RecordContent::Finished(head)),
        ExecutionEvent::Accepted => Ok(RecordContent::Accepted(head)),
        ExecutionEvent::Other => stored.execution().map(|record| RecordContent::Open(Box::new(record))),
    }
}

/// Converts a record to a change of the index. An unfinished execution is read completely, because an executor must be
/// able to read it too.
fn event(shared: &Shared, content: &RecordContent, stored: &Stored) -> Result<Change, BusError> {
    Ok(match content {
        RecordContent::Finished(head) => finished(shared, head),
        RecordContent::Accepted(_) => {
            Change::Open(Move::Waits, Box::new(open(shared, &stored.execution()?, stored)))
        }
        RecordContent::Open(record) => {
            let change = match &record.phase {
                ExecutionPhase::Accepted | ExecutionPhase::Requeued { .. } | ExecutionPhase::Finished(_) => {
                    Move::Waits
                }
                ExecutionPhase::Raised => Move::Stays,
                ExecutionPhase::Hedged => Move::Hedged,
                ExecutionPhase::CopyEnded { executor, .. } => Move::CopyEnded(executor.clone()),
            };
            Change::Open(change, Box::new(open(shared, record, stored)))
        }
    })
}

/// Converts an unfinished execution, whose last record is `stored`, to an entry of the index.
fn open(shared: &Shared, record: &ExecutionRecord, stored: &Stored) -> Open {
    let execution = &record.execution;
    let requirements = &execution.requirements;
    let sized = shared.learned.size(record, &shared.view.capacity(requirements));
    let waiting = Waiting {
        position: stored.sequence.0,
        arrived_ms: execution.accepted_at_ms.0,
        estimate_ms: sized.wall_ms,
        flexibility: if shared.order.needs_flexibility() { shared.view.count(requirements) } else { 0 },
    };
    Open {
        until: waits_until(record),
        demand: sized.demand,
        cost: sized.cost,
        place: place(shared.order, &execution.client.invocation, sized.length, &waiting),
        merge: MergeKey::of(execution),
        record: stored.payload.to_vec(),
    }
}
