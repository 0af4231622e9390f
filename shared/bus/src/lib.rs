//! Access to NATS: typed subjects, encodings, compare-and-set transitions, leases and ordered reading.
//!
//! Only this crate and the topology in `jetstream` contain subject and header names.
//!
//! [`Bus`] is the connection: it sends plain messages and writes transitions. It returns a handle for each other use:
//! [`Leases`], [`Records`], [`Buckets`], [`StoredStream`], [`LogStream`] and [`Gateways`].

mod accepted;
mod action_subject;
mod admission;
mod advisories;
mod api;
mod ask;
mod audit;
mod bazel_events;
mod bucket;
mod clock;
mod codec;
mod connect;
mod console;
mod crossing;
mod decisions;
mod denials;
mod elections;
mod entries;
mod error;
mod event_pages;
mod filter;
mod follow;
mod gateways;
mod guarded;
mod headers;
mod lease;
mod lifecycle;
mod live;
mod log_stream;
mod messages;
mod permissions;
mod plain;
mod probe;
mod published;
mod queue;
mod records;
mod rejection;
mod request_id;
mod resolver;
mod rights;
mod screen;
mod seal;
mod several;
mod stored;
mod stored_stream;
mod subject;
mod transition;
mod watched;
mod write_check;

pub use action_subject::{ActionSubject, BazelSubject, ExecutorLeaseSubject, LogSubject};
pub use advisories::{Advisories, AdvisoryKind};
pub use api::{ApiEndpoint, ApiRequest, ApiService};
pub use ask::AskError;
pub use audit::AuditSubject;
pub use bazel_events::{BazelEvents, EventContent, EventOwner, named_blob};
pub use bucket::{Buckets, Entry, EntryChange, EntryChanges, ListedEntry};
pub use clock::FarmClock;
/// For the macros of this crate, and for the tests of its parsers.
#[doc(hidden)]
pub mod hidden {
    pub use bytes::Bytes;

    pub use crate::{
        codec::{from_json, to_json},
        screen::screened,
    };
}

pub use codec::{DecodeError, Encoding, FromClient, FromJson, Message, ToClient, millis};
pub use connect::{Bus, LiveConnection, Patience, Reconnects, ServerInfo};
pub use console::{Chunk, ConsoleChunk, ConsoleFrame, GuardedWriter, RunPlace, invocation_of};
pub use crossing::Crossing;
pub use decisions::DECISIONS_SUBJECT;
pub use denials::Denied;
pub use entries::{ActionsFloor, ArchivedBlobs, EnvironmentChanged, QuotaChange, QuotaOf};
pub use error::BusError;
pub use event_pages::{EVENTS_MAX, EventsRequest, no_events};
pub use follow::{Follower, Start};
pub use gateways::Gateways;
pub use guarded::ChunkFault;
pub use headers::{
    HEADER_ATTEMPT, HEADER_BLOB, HEADER_BYTES, HEADER_DROPPED, HEADER_INVOCATION, HEADER_LINES,
    HEADER_NUMBERS, HEADER_OFFSET, HEADER_STREAM, HEADER_TOOL_INVOCATION, header, message_id, traceparent,
};
pub use lease::{Acquired, Lease, LeaseChange, LeaseHolder, LeaseName, Leases, Renewed};
pub use lifecycle::{Lifecycle, RecordKey};
pub use live::{Live, LiveExecution};
pub use log_stream::{LogEnd, LogHead, LogPiece, LogStream};
pub use messages::ControlReply;
pub use plain::{Answering, Answers, HeartbeatMessage, Listener, NoAnswer, Plain, Received, Signals};
pub use probe::{Probe, ProbeError};
pub use published::{AllMessages, Published, PublishedRequests};
pub use queue::{Delivery, Handled, Limits, WorkQueue};
pub use records::Records;
pub use request_id::RequestId;
pub use resolver::Resolver;
pub use rights::{EachOf, LiveSubjects, Rights, WrittenSubjects};
pub use seal::Seals;
pub use stored::Stored;
pub use stored_stream::{ConsumerState, StoredStream, StreamState, Tail};
pub use subject::{
    ApiCall, ArchiveCall, EventKind, EventSubject, LeaseSubject, ParseSubjectError, RequestSubject, Subject,
    stream,
};
pub use transition::Written;
pub use watched::{Completeness, LiveBuild, LiveEvent, WatchedKinds};
