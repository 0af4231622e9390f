//! Messages of `google.devtools.build.v1`, as far as Forebay uses them.
//!
//! Source: googleapis, `google/devtools/build/v1`. The crate `googleapis-tonic-google-devtools-build-v1` has a client only
//! and copies the bytes of events, which these types share with the buffer that they arrived in.

use bytes::Bytes;
use prost::{Message, Oneof};
use prost_types::Timestamp;

/// The full name of the service.
pub const SERVICE: &str = "google.devtools.build.v1.PublishBuildEvent";
/// The path of the method `PublishLifecycleEvent`.
pub const LIFECYCLE: &str = "/google.devtools.build.v1.PublishBuildEvent/PublishLifecycleEvent";
/// The path of the method `PublishBuildToolEventStream`.
pub const TOOL_STREAM: &str = "/google.devtools.build.v1.PublishBuildEvent/PublishBuildToolEventStream";

/// Identifies a stream of events.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StreamId {
    #[prost(string, tag = "1")]
    pub build_id: String,
    #[prost(string, tag = "6")]
    pub invocation_id: String,
    /// 1: controller, 2: worker, 3: tool.
    #[prost(int32, tag = "3")]
    pub component: i32,
}

/// A message of any type, whose bytes are not copied.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Any {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Empty {}

/// The end of a stream.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StreamFinished {
    /// 1: finished, 2: expired.
    #[prost(int32, tag = "1")]
    pub kind: i32,
}

/// An event of a tool, or of the service that runs it.
#[derive(Clone, PartialEq, Message)]
pub struct BuildEvent {
    /// Time of the event by the clock of its sender.
    #[prost(message, optional, tag = "1")]
    pub event_time: Option<Timestamp>,
    #[prost(oneof = "Event", tags = "51, 52, 53, 55, 56, 59, 60, 61, 62, 63")]
    pub event: Option<Event>,
}

/// The content of an event.
#[derive(Clone, PartialEq, Oneof)]
pub enum Event {
    #[prost(bytes = "bytes", tag = "51")]
    InvocationAttemptStarted(Bytes),
    #[prost(bytes = "bytes", tag = "52")]
    InvocationAttemptFinished(Bytes),
    #[prost(bytes = "bytes", tag = "53")]
    BuildEnqueued(Bytes),
    #[prost(bytes = "bytes", tag = "55")]
    BuildFinished(Bytes),
    #[prost(bytes = "bytes", tag = "56")]
    ConsoleOutput(Bytes),
    #[prost(message, tag = "59")]
    ComponentStreamFinished(StreamFinished),
    #[prost(message, tag = "60")]
    BazelEvent(Any),
    #[prost(message, tag = "61")]
    BuildExecutionEvent(Any),
    #[prost(message, tag = "62")]
    SourceFetchEvent(Any),
    #[prost(message, tag = "63")]
    BuckEvent(Any),
}

/// An event with its number in its stream.
#[derive(Clone, PartialEq, Message)]
pub struct OrderedBuildEvent {
    #[prost(message, optional, tag = "1")]
    pub stream_id: Option<StreamId>,
    /// Number of the event in its stream, from 1.
    #[prost(int64, tag = "2")]
    pub sequence_number: i64,
    #[prost(message, optional, tag = "3")]
    pub event: Option<BuildEvent>,
}

/// A request of `PublishBuildToolEventStream`.
#[derive(Clone, PartialEq, Message)]
pub struct ToolStreamRequest {
    #[prost(message, optional, tag = "4")]
    pub ordered_build_event: Option<OrderedBuildEvent>,
    #[prost(string, repeated, tag = "5")]
    pub notification_keywords: Vec<String>,
    #[prost(string, tag = "6")]
    pub project_id: String,
}

/// The acknowledgement of one event.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ToolStreamResponse {
    #[prost(message, optional, tag = "1")]
    pub stream_id: Option<StreamId>,
    #[prost(int64, tag = "2")]
    pub sequence_number: i64,
}

/// A request of `PublishLifecycleEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct LifecycleRequest {
    #[prost(message, optional, tag = "2")]
    pub build_event: Option<OrderedBuildEvent>,
    #[prost(string, repeated, tag = "4")]
    pub notification_keywords: Vec<String>,
    #[prost(string, tag = "6")]
    pub project_id: String,
}

impl OrderedBuildEvent {
    /// Whether no event follows in its stream.
    pub fn is_last(&self) -> bool {
        let event = self.event.as_ref().and_then(|event| event.event.as_ref());
        matches!(event, Some(Event::ComponentStreamFinished(_)))
    }

    /// The event of the Build Event Protocol that it carries, encoded.
    pub fn bazel_event(&self) -> Option<&Any> {
        let event = self.event.as_ref()?.event.as_ref()?;
        if let Event::BazelEvent(any) = event { Some(any) } else { None }
    }
}
