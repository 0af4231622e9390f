//! An event as JSON: one line of `forebay watch --json`, the data of one server-sent event.

use base64::Engine as _;
use build_events::{Summary, service::OrderedBuildEvent};
use bus::{BazelEvents, ConsoleChunk, ConsoleFrame, EventContent};
use bytes::Bytes;
use invariant::Present as _;
use model::{Attempt, BuildRecord, InvocationId, OutputStream, Sequence, ToolEvent, ToolInvocation};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Frame, FrameContent, QueuePlace, WatchBody, WatchEvent};

/// One event of a build as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchLine {
    /// Position of the event; watch from here to continue after it. Absent for a place in the queue,
    /// which is not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Sequence>,
    /// Id of the invocation that the event belongs to. Absent before one starts, and in events of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<InvocationId>,
    /// Kind and content of the event.
    #[serde(flatten)]
    pub body: WatchLineBody,
}

/// Kind and content of an event of a build, as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum WatchLineBody {
    /// The build's state changed.
    Lifecycle {
        /// Complete record of the build after the change.
        record: Box<BuildRecord>,
    },
    /// Output of the command.
    Console {
        /// Output stream that wrote it: `stdout` or `stderr`.
        stream: OutputStream,
        /// Number of the attempt that wrote it.
        attempt: Attempt,
        /// Offset in bytes of its start in that output stream.
        offset: u64,
        /// The output, if it is valid UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// The output in base64, if it is not valid UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
        /// Number of bytes that were discarded here; the event then contains no output.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dropped: Option<u64>,
    },
    /// Output of the command that is in the store.
    Frame {
        /// Number of the attempt that wrote it.
        attempt: Attempt,
        /// Offset in bytes of its start in the whole console output.
        offset: u64,
        /// Number of bytes of the output that it has.
        bytes: u64,
        /// Number of line ends.
        lines: u64,
        /// Blob of the store that has the output.
        blob: String,
        /// The output, in order of arrival.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        parts: Vec<FramePartLine>,
        /// Why the output is missing, if it cannot be read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lost: Option<String>,
    },
    /// The worker reports progress of the build, such as the preparation of its workspace.
    Tool {
        /// Event of the worker.
        tool: ToolEvent,
    },
    /// Bazel published build events.
    Bazel {
        /// Id that Bazel gave the call.
        tool_invocation: ToolInvocation,
        /// Number of the first event; the first one of a call has number 1.
        first: u64,
        /// Number of the last event.
        last: u64,
        /// Whether the call ended with the last event.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        complete: bool,
        /// The events; empty if they are in a blob, or unreadable.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        events: Vec<BazelEventLine>,
        /// Blob of the store that has the events, because they are large.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        blob: Option<String>,
    },
    /// The build waits, and its place or its expected start has changed.
    Queue(QueuePlace),
}

/// Output of one stream in a frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FramePartLine {
    /// Output stream that wrote it: `stdout` or `stderr`.
    pub stream: OutputStream,
    /// Offset in bytes of its start in that output stream.
    pub offset: u64,
    /// The output, if it is valid UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The output in base64, if it is not valid UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// A build event of Bazel, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BazelEventLine {
    /// Number of the event in its call.
    pub number: i64,
    /// Name of its id in the Build Event Protocol, for example `targetCompleted`; `other` if it is unknown.
    pub event: String,
    /// Label of the target that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// How that target, test or call ended, for example `built`, `failed`, `passed` or `SUCCESS`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
}

impl From<&WatchEvent> for WatchLine {
    fn from(event: &WatchEvent) -> Self {
        let body = match &event.body {
            WatchBody::Lifecycle(record) => WatchLineBody::Lifecycle { record: record.clone() },
            WatchBody::Console(chunk) => console(chunk),
            WatchBody::Frame(found) => frame(found),
            WatchBody::Tool(tool) => WatchLineBody::Tool { tool: tool.clone() },
            WatchBody::Bazel(events) => bazel(events),
        };
        Self { position: Some(event.position), invocation: event.invocation, body }
    }
}

fn bazel(found: &BazelEvents) -> WatchLineBody {
    let (events, blob) = match &found.content {
        EventContent::Inline(packed) => (BazelEventLine::all(packed), None),
        EventContent::Blob(blob) => (Vec::new(), Some(blob.to_string())),
    };
    let (tool_invocation, first, last) = (found.tool.clone(), found.first, found.last);
    WatchLineBody::Bazel { tool_invocation, first, last, complete: found.complete, events, blob }
}

impl BazelEventLine {
    /// The events in `packed`; none if they are unreadable.
    pub fn all(packed: &Bytes) -> Vec<Self> {
        let events = build_events::unpack(packed.clone()).unwrap_or_else(|error| {
            tracing::debug!(%error, "ignoring build events in an unknown format");
            Vec::new()
        });
        events.iter().map(Self::of).collect()
    }

    fn of(event: &OrderedBuildEvent) -> Self {
        let Summary { name, label } = Summary::of(event);
        let status = build_events::fact(event).and_then(|fact| fact.status());
        Self { number: event.sequence_number, event: name.as_str().to_owned(), label, status }
    }
}

fn frame(found: &Frame) -> WatchLineBody {
    let ConsoleFrame { attempt, blob, offset, bytes, lines } = found.reference;
    let parts = found.parts();
    let parts = parts.iter().map(|part| {
        let (text, base64) = text_or_base64(part.data);
        FramePartLine { stream: part.stream, offset: part.offset, text, base64 }
    });
    let lost = match &found.content {
        FrameContent::Lost(why) => Some(why.clone()),
        FrameContent::Read(_) | FrameContent::Unread => None,
    };
    let blob = blob.to_string();
    WatchLineBody::Frame { attempt, offset, bytes, lines, blob, parts: parts.collect(), lost }
}

fn text_or_base64(data: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(data) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(base64::engine::general_purpose::STANDARD.encode(data))),
    }
}

fn console(chunk: &ConsoleChunk) -> WatchLineBody {
    let (text, base64) = if chunk.dropped.is_some() { (None, None) } else { text_or_base64(&chunk.data) };
    let (stream, attempt, offset) = (chunk.stream, chunk.attempt, chunk.offset);
    WatchLineBody::Console { stream, attempt, offset, text, base64, dropped: chunk.dropped }
}

impl WatchEvent {
    /// The event as JSON in the format of [`WatchLine`].
    pub fn to_json(&self) -> serde_json::Value {
        // Maps with text keys always encode.
        serde_json::to_value(WatchLine::from(self)).present("an event cannot be encoded")
    }
}

impl QueuePlace {
    /// The place as JSON in the format of [`WatchLine`].
    pub fn to_json(&self) -> serde_json::Value {
        let line = WatchLine { position: None, invocation: None, body: WatchLineBody::Queue(self.clone()) };
        serde_json::to_value(line).present("a queue position cannot be encoded")
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use model::{Millis, OutputStream, StartBasis};
    use serde_json::json;

    use super::{Attempt, ConsoleChunk, QueuePlace, Sequence, ToolEvent, WatchBody, WatchEvent};

    fn console(data: &'static [u8], dropped: Option<u64>) -> serde_json::Value {
        let chunk = ConsoleChunk {
            stream: OutputStream::Stderr,
            attempt: Attempt(2),
            offset: 5,
            dropped,
            data: Bytes::from_static(data),
        };
        WatchEvent { position: Sequence(9), invocation: None, body: WatchBody::Console(chunk) }.to_json()
    }

    #[test]
    fn console_is_text_where_it_can_be() {
        let head = json!({"position": 9, "kind": "console", "stream": "stderr", "attempt": 2, "offset": 5});
        let with = |name: &str, value: serde_json::Value| {
            let mut line = head.clone();
            line[name] = value;
            line
        };
        assert_eq!(console("né\n".as_bytes(), None), with("text", json!("né\n")));
        assert_eq!(console(b"\xff\x00", None), with("base64", json!("/wA=")));
        assert_eq!(console(b"", Some(7)), with("dropped", json!(7)));
    }

    #[test]
    fn a_place_in_the_queue_has_no_position() {
        let place = QueuePlace {
            place: 3,
            queued: 9,
            reason: "no workspace is idle".to_owned(),
            expected_start_ms: Some(Millis(5)),
            expected_by: Some(StartBasis::Both),
            late: false,
        };
        let line = json!({"kind": "queue", "place": 3, "queued": 9, "reason": "no workspace is idle",
            "expected_start_ms": 5, "expected_by": "both"});
        assert_eq!(place.to_json(), line);
    }

    #[test]
    fn tool_events_keep_their_form() {
        let tool = ToolEvent::WorkspacePrepared { attempt: Attempt(1), wall_seconds: 0.5 };
        let id = "0198c5d3-0000-7000-8000-000000000001";
        let invocation = Some(id.parse().unwrap());
        let line = WatchEvent { position: Sequence(4), invocation, body: WatchBody::Tool(tool) }.to_json();
        let tool = json!({"event": "WORKSPACE_PREPARED", "attempt": 1, "wall_seconds": 0.5});
        assert_eq!(line, json!({"position": 4, "invocation": id, "kind": "tool", "tool": tool}));
    }
}
