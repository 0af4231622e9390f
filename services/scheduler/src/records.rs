//! Stored records as the scheduler reads them. Only a few fields of finished executions are read, because a
//! rebuild reads all records.

use bus::{BusError, Stored};
use index::actions::{Change, Event, MergeKey, Move, Open};
use model::{
    AcceptedHead, ActionOrder, ExecutionEvent, ExecutionHead, ExecutionPhase, ExecutionRecord, RoomReport,
};

use policy::{
    actions::{place, waits_until},
    queue::Waiting,
};

use crate::Shared;

/// Content of a record.
pub(crate) enum RecordContent {
    /// The execution has not finished.
    Open(Box<ExecutionRecord>),
    /// The execution has finished.
    Finished(Box<ExecutionHead>),
}

/// A record after it was read.
pub(crate) struct ReadRecord {
    pub(crate) content: RecordContent,
    pub(crate) event: Event,
    /// Room of the executor that wrote the record.
    pub(crate) room: Option<RoomReport>,
}

fn finished(shared: &Shared, head: &ExecutionHead) -> Change {
    let AcceptedHead { group, instance, action, do_not_cache, client, keys, .. } = &head.execution;
    // Other orders do not charge invocations.
    let measured = head.measured.as_ref().filter(|_| shared.order == ActionOrder::Turns);
    Change::Finished {
        executor: head.executor.clone(),
        merge: (!do_not_cache).then(|| MergeKey::named(group, action, instance)),
        beyond: measured.map(|measured| (client.invocation.clone(), shared.learned.beyond(keys, measured))),
    }
}

/// Reads a record. An unfinished execution is read completely, because an executor must be able to read it too.
pub(crate) fn read(stored: &Stored) -> Result<RecordContent, BusError> {
    let head: Box<ExecutionHead> = stored.read()?;
    match head.event {
        ExecutionEvent::Finished => Ok(RecordContent::Finished(head)),
        ExecutionEvent::Accepted | ExecutionEvent::Other => {
            stored.execution().map(|record| RecordContent::Open(Box::new(record)))
        }
    }
}

/// Converts a record to an event of the index.
pub(crate) fn event(shared: &Shared, content: &RecordContent, stored: &Stored) -> Event {
    let (key, change) = match content {
        RecordContent::Finished(head) => (head.key(), finished(shared, head)),
        RecordContent::Open(record) => {
            let change = match &record.phase {
                ExecutionPhase::Accepted | ExecutionPhase::Requeued { .. } | ExecutionPhase::Finished(_) => {
                    Move::Waits
                }
                ExecutionPhase::Raised => Move::Stays,
                ExecutionPhase::Hedged => Move::Hedged,
                ExecutionPhase::CopyEnded { executor, .. } => Move::CopyEnded(executor.clone()),
            };
            let open = open(shared, record, stored);
            (record.execution.key(), Change::Open(change, Box::new(open)))
        }
    };
    Event { key, sequence: stored.sequence, change }
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
