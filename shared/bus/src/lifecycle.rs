//! Records whose last message on their own subject is the state of a build or an execution, and the keys of both.

use model::{BuildKey, BuildRecord, ExecutionHead, ExecutionKey, ExecutionRecord, RecordHead};

use crate::{ActionSubject, EventSubject, Message, fields, message, stream};

message!(BuildRecord, ExecutionRecord);
fields!(RecordHead, ExecutionHead, Box<ExecutionHead>);

/// A record whose last message on its own subject is the state of its build or execution.
pub trait Lifecycle: Message + Sync {
    /// The stream that stores it.
    const STREAM: &str;

    /// The subject of this record.
    fn subject(&self) -> String;

    /// The W3C trace context that it belongs to.
    fn traceparent(&self) -> Option<&str>;

    /// Whether both describe the same build or execution, as it was accepted.
    fn is_same_work(&self, other: &Self) -> bool;
}

impl Lifecycle for BuildRecord {
    const STREAM: &str = stream::EVENTS;

    fn subject(&self) -> String {
        self.build.key().record_subject()
    }

    fn traceparent(&self) -> Option<&str> {
        self.build.traceparent.as_deref()
    }

    /// Ignores `max_attempts`, which grows when a worker gives the build back.
    fn is_same_work(&self, other: &Self) -> bool {
        let max_attempts = self.build.max_attempts;
        self.build == model::Build { max_attempts, ..other.build.clone() }
    }
}

impl Lifecycle for ExecutionRecord {
    const STREAM: &str = stream::ACTIONS;

    fn subject(&self) -> String {
        self.execution.key().record_subject()
    }

    fn traceparent(&self) -> Option<&str> {
        self.execution.traceparent.as_deref()
    }

    fn is_same_work(&self, other: &Self) -> bool {
        self.execution == other.execution
    }
}

/// The key of a build or an execution.
pub trait RecordKey: Send + Sync {
    type Record: Lifecycle;

    /// The subject of its records.
    fn record_subject(&self) -> String;
}

impl RecordKey for BuildKey {
    type Record = BuildRecord;

    fn record_subject(&self) -> String {
        EventSubject::lifecycle(self).to_string()
    }
}

impl RecordKey for ExecutionKey {
    type Record = ExecutionRecord;

    fn record_subject(&self) -> String {
        ActionSubject(self.clone()).to_string()
    }
}
