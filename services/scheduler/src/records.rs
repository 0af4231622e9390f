//! Stored records as the scheduler reads them. Only a few fields of finished executions are read, because a
//! rebuild reads all records.

use bus::{BusError, Stored};
use index::actions::{Change, Event, MergeKey, Move};
use model::{
    ActionKeys, BlobDigest, ClientTool, ExecutionId, ExecutionKey, ExecutionPhase, ExecutionRecord,
    ExecutorHome, ExecutorId, Group, Measured, PoolName, Resources,
};
use serde::Deserialize;

use crate::learned::{self, Learned};

/// Content of a record.
pub(crate) enum RecordContent {
    /// The execution has not finished.
    Open(Box<ExecutionRecord>),
    /// The execution has finished.
    Finished(Box<FinishedRecord>),
}

/// The fields of a finished execution that the scheduler uses.
#[derive(Deserialize)]
pub(crate) struct FinishedRecord {
    execution: ExecutionFields,
    #[serde(default)]
    pub(crate) executor: Option<ExecutorId>,
    #[serde(default)]
    code: i32,
    #[serde(default)]
    exit_code: Option<i32>,
    #[serde(default)]
    pub(crate) home: Option<ExecutorHome>,
    #[serde(default)]
    pub(crate) measured: Option<Measured>,
}

#[derive(Deserialize)]
struct ExecutionFields {
    id: ExecutionId,
    group: Group,
    #[serde(default)]
    instance: String,
    action: BlobDigest,
    #[serde(default)]
    do_not_cache: bool,
    #[serde(default)]
    client: ClientTool,
    #[serde(default)]
    keys: ActionKeys,
}

#[derive(Deserialize)]
struct RecordFields {
    event: EventName,
}

#[derive(Deserialize, PartialEq, Eq)]
enum EventName {
    #[serde(rename = "ACTION_FINISHED")]
    Finished,
    #[serde(other)]
    Open,
}

impl FinishedRecord {
    pub(crate) fn key(&self) -> ExecutionKey {
        ExecutionKey { group: self.execution.group.clone(), id: self.execution.id }
    }

    pub(crate) fn keys(&self) -> &ActionKeys {
        &self.execution.keys
    }

    /// Whether the command ran to its end and exited with 0.
    pub(crate) fn is_success(&self) -> bool {
        self.code == 0 && self.exit_code == Some(0)
    }

    fn change(&self, learned: &Learned) -> Change {
        let ExecutionFields { group, instance, action, do_not_cache, client, .. } = &self.execution;
        Change::Finished {
            executor: self.executor.clone(),
            merge: (!do_not_cache).then(|| MergeKey::named(group, action, instance)),
            invocation: client.invocation.clone(),
            beyond: self.measured.as_ref().map_or(0, |measured| learned.beyond(self.keys(), measured)),
        }
    }
}

/// Reads a record. An unfinished execution is read completely, because an executor must be able to read it too.
pub(crate) fn read(stored: &Stored) -> Result<RecordContent, BusError> {
    let fields: RecordFields = stored.read()?;
    match fields.event {
        EventName::Finished => stored.read().map(RecordContent::Finished),
        EventName::Open => stored.execution().map(|record| RecordContent::Open(Box::new(record))),
    }
}

/// Converts a record to an event of the index; `capacity` returns the resources of the largest executor of a pool.
pub(crate) fn event(
    content: &RecordContent,
    stored: &Stored,
    learned: &Learned,
    capacity: impl FnOnce(&PoolName) -> Resources,
) -> Event {
    let (key, change) = match content {
        RecordContent::Finished(finished) => (finished.key(), finished.change(learned)),
        RecordContent::Open(record) => {
            let change = match &record.phase {
                ExecutionPhase::Accepted | ExecutionPhase::Requeued { .. } | ExecutionPhase::Finished(_) => {
                    Move::Waits
                }
                ExecutionPhase::Raised => Move::Stays,
                ExecutionPhase::Hedged => Move::Hedged,
                ExecutionPhase::CopyEnded { executor, .. } => Move::CopyEnded(executor.clone()),
            };
            let open = learned::open(learned, record, stored.payload.to_vec(), capacity);
            (record.execution.key(), Change::Open(change, Box::new(open)))
        }
    };
    Event { key, sequence: stored.sequence, change }
}
