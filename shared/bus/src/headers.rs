//! Header names and functions that read headers.

use async_nats::HeaderMap;

/// Output that a console chunk belongs to: `stdout` or `stderr`.
pub const HEADER_STREAM: &str = "Forebay-Stream";
/// Attempt that a console or tool event belongs to.
pub const HEADER_ATTEMPT: &str = "Forebay-Attempt";
/// Id of the invocation that a console or tool event belongs to.
pub const HEADER_INVOCATION: &str = "Forebay-Invocation";
/// Id that a build tool gave the call whose events a message has.
pub const HEADER_TOOL_INVOCATION: &str = "Forebay-Tool-Invocation";
/// Numbers of the first and the last build event in a message, as `FIRST-LAST`.
pub const HEADER_NUMBERS: &str = "Forebay-Numbers";
/// On an empty message: the blob that has its content, as `HASH/SIZE`.
pub const HEADER_BLOB: &str = "Forebay-Blob";
/// Offset of a console chunk in its output, in bytes.
pub const HEADER_OFFSET: &str = "Forebay-Offset";
/// Number of bytes of console output in a frame.
pub const HEADER_BYTES: &str = "Forebay-Bytes";
/// Number of line ends in a frame of console output.
pub const HEADER_LINES: &str = "Forebay-Lines";
/// On an empty console chunk: number of bytes omitted here, and whether they are kept.
pub const HEADER_DROPPED: &str = "Forebay-Dropped";

/// Name of the caller of a gateway for which it makes a call, or of the user of a command. Anyone on the bus can set it.
pub(crate) const CALLER: &str = "Forebay-Caller";
/// Identifies the writer, so that it recognises its own write after an uncertain answer.
pub(crate) const WRITER: &str = "Forebay-Writer";
/// Room of the executor that wrote the record, as a [`RoomReport`](model::RoomReport) in JSON.
pub(crate) const ROOM: &str = "Forebay-Room";
/// Marks a live message that is not a stored record.
pub(crate) const PROGRESS: &str = "Forebay-Progress";
/// Proof that the writer of a first record has the key of the farm.
pub(crate) const SEAL: &str = "Forebay-Seal";
pub(crate) const CONTENT_TYPE: &str = "Content-Type";
pub(crate) const TRACEPARENT: &str = "traceparent";
pub(crate) const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
pub(crate) const EXPECTED_SUBJECT: &str = "Nats-Expected-Last-Subject-Sequence-Subject";
pub(crate) const TTL: &str = "Nats-TTL";
pub(crate) const ROLLUP: &str = "Nats-Rollup";
/// Key-value clients set it on the marker of a deleted key.
pub(crate) const KV_OPERATION: &str = "KV-Operation";
pub(crate) const MARKER_REASON: &str = "Nats-Marker-Reason";
pub(crate) const MESSAGE_ID: &str = "Nats-Msg-Id";

/// Set by the relay on a message that the client library cannot parse: why.
pub(crate) const UNREADABLE: &str = "Forebay-Unreadable";

/// On the message that ends an answer of several: whether there are more.
pub(crate) const MORE: &str = "Forebay-More";

/// Marks the message with the last event of a stream of build events.
pub(crate) const STREAM_END: &str = "Forebay-Stream-End";
/// Marks the last piece of a log stream.
pub(crate) const LOG_END: &str = "Forebay-Log-End";

pub fn header<'a>(headers: Option<&'a HeaderMap>, name: &str) -> Option<&'a str> {
    headers?.get(name).map(async_nats::HeaderValue::as_str)
}

/// The value of `Nats-Msg-Id`.
pub fn message_id(headers: Option<&HeaderMap>) -> Option<&str> {
    header(headers, MESSAGE_ID)
}

/// The W3C trace context, from header `traceparent`.
pub fn traceparent(headers: Option<&HeaderMap>) -> Option<&str> {
    header(headers, TRACEPARENT)
}
