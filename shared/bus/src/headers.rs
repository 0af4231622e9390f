//! Header names, and reading them.

use async_nats::HeaderMap;

/// Which output a console chunk is of: `stdout` or `stderr`.
pub const HEADER_STREAM: &str = "Forebay-Stream";
/// The run that a console or tool event belongs to.
pub const HEADER_ATTEMPT: &str = "Forebay-Attempt";
/// Where a console chunk starts in its output, in bytes.
pub const HEADER_OFFSET: &str = "Forebay-Offset";
/// On an empty console chunk: how many bytes are left out here, and whether they are kept.
pub const HEADER_DROPPED: &str = "Forebay-Dropped";

/// Recognises one's own write after a doubtful answer.
pub(crate) const WRITER: &str = "Forebay-Writer";
/// On a live message that is no stored record.
pub(crate) const PROGRESS: &str = "Forebay-Progress";
pub(crate) const CONTENT_TYPE: &str = "Content-Type";
pub(crate) const TRACEPARENT: &str = "traceparent";
pub(crate) const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
pub(crate) const EXPECTED_SUBJECT: &str = "Nats-Expected-Last-Subject-Sequence-Subject";
pub(crate) const TTL: &str = "Nats-TTL";
pub(crate) const ROLLUP: &str = "Nats-Rollup";
pub(crate) const KV_OPERATION: &str = "KV-Operation";
pub(crate) const MARKER_REASON: &str = "Nats-Marker-Reason";
pub(crate) const MESSAGE_ID: &str = "Nats-Msg-Id";

/// On the last piece of a log stream.
pub(crate) const LOG_END: &str = "Forebay-Log-End";

/// The value of header `name`.
pub fn header<'a>(headers: Option<&'a HeaderMap>, name: &str) -> Option<&'a str> {
    headers?.get(name).map(async_nats::HeaderValue::as_str)
}

/// The `Nats-Msg-Id`.
pub fn message_id(headers: Option<&HeaderMap>) -> Option<&str> {
    header(headers, MESSAGE_ID)
}

/// The W3C trace context.
pub fn traceparent(headers: Option<&HeaderMap>) -> Option<&str> {
    header(headers, TRACEPARENT)
}
