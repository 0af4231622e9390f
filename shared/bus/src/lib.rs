//! Access to NATS: typed subjects, encodings, compare-and-set transitions, leases and ordered reading.
//!
//! Only this crate and the topology in `jetstream` contain subject and header names.

mod action_subject;
mod api;
mod ask;
mod bucket;
mod clock;
mod codec;
mod connect;
mod console;
mod entries;
mod error;
mod follow;
mod gateways;
mod headers;
mod lease;
mod live;
mod log_stream;
mod messages;
mod plain;
mod published;
mod queue;
mod read;
mod rejection;
mod request_id;
mod stored;
mod subject;
mod transition;
mod write_check;

pub use action_subject::{ActionSubject, ExecutorLeaseSubject, LogSubject};
pub use api::{ApiEndpoint, ApiRequest, ApiService, one_line};
pub use ask::AskError;
pub use bucket::{Entry, EntryChange, EntryChanges, ListedEntry};
pub use clock::FarmClock;
pub use codec::{DecodeError, Encoding, decode, encode, millis};
pub use connect::{Bus, LiveBuild, LiveConnection, LiveEvent, Patience, Reconnects, ServerInfo};
pub use console::{Chunk, ChunkFault, ConsoleChunk, GuardedWriter, RunPlace};
pub use entries::{ActionsFloor, QuotaChange, QuotaOf};
pub use error::BusError;
pub use follow::{Follower, Start};
pub use headers::{
    HEADER_ATTEMPT, HEADER_DROPPED, HEADER_OFFSET, HEADER_STREAM, header, message_id, traceparent,
};
pub use lease::{Acquired, Lease, LeaseChange, LeaseHolder, LeaseName, Renewed};
pub use live::{Live, LiveExecution};
pub use log_stream::{LogEnd, LogHead, LogPiece};
pub use messages::ControlReply;
pub use plain::{Answering, Answers, HeartbeatMessage, Listener, NoAnswer, Plain, Received, Signals};
pub use published::{Published, PublishedRequests};
pub use queue::{Delivery, Handled, Limits, WorkQueue};
pub use read::Tail;
pub use request_id::RequestId;
pub use stored::Stored;
pub use subject::{
    ApiCall, EventKind, EventSubject, LeaseSubject, ParseSubjectError, RequestSubject, Subject, stream,
};
pub use transition::{Lifecycle, Written};
