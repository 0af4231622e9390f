//! Events of a build as delivered to watchers.

use bus::{
    BazelEvents, BusError, ConsoleChunk, ConsoleFrame, DecodeError, EventKind, EventSubject, Stored,
    invocation_of,
};
use model::{BuildRecord, InvocationId, Sequence, State, ToolEvent};

use crate::frame::Frame;

/// An event of a build.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchEvent {
    /// Position of the event; watch from here to continue after it.
    pub position: Sequence,
    /// Id of the invocation that the event belongs to; none before one starts.
    pub invocation: Option<InvocationId>,
    pub body: WatchBody,
}

/// Content of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchBody {
    /// The build's state changed.
    Lifecycle(Box<BuildRecord>),
    /// Output of the command.
    Console(ConsoleChunk),
    /// Output of the command that is in the store.
    Frame(Frame),
    /// Event of the worker about the build.
    Tool(ToolEvent),
    /// Build events that Bazel published.
    Bazel(BazelEvents),
}

impl WatchEvent {
    pub fn kind(&self) -> EventKind {
        match self.body {
            WatchBody::Lifecycle(_) => EventKind::Lifecycle,
            WatchBody::Console(_) | WatchBody::Frame(_) => EventKind::Console,
            WatchBody::Tool(_) => EventKind::Tool,
            WatchBody::Bazel(_) => EventKind::Bazel,
        }
    }

    /// Whether no event follows.
    pub fn is_last(&self) -> bool {
        match &self.body {
            WatchBody::Lifecycle(record) => record.state() == State::Finished,
            WatchBody::Console(_) | WatchBody::Frame(_) | WatchBody::Tool(_) | WatchBody::Bazel(_) => false,
        }
    }

    /// Reads a stored event. None: its kind or format is unknown to this program.
    pub(crate) fn read(stored: &Stored) -> Result<Option<Self>, BusError> {
        let Ok(subject) = stored.subject.parse::<EventSubject>() else { return Ok(None) };
        let body = match subject.kind {
            EventKind::Lifecycle => WatchBody::Lifecycle(Box::new(stored.record()?)),
            EventKind::Console => match ConsoleChunk::read(stored.headers.as_ref(), &stored.payload) {
                Some(chunk) => WatchBody::Console(chunk),
                None => match ConsoleFrame::read(stored.headers.as_ref()) {
                    Some(reference) => WatchBody::Frame(Frame::unread(reference)),
                    None => return Ok(None),
                },
            },
            EventKind::Bazel => match BazelEvents::read(stored) {
                Some(events) => WatchBody::Bazel(events),
                None => return Ok(None),
            },
            EventKind::Tool => match read_tool(stored) {
                Ok(tool) => WatchBody::Tool(tool),
                Err(error) => {
                    tracing::debug!(position = %stored.sequence, %error, "ignoring a tool event in an unknown format");
                    return Ok(None);
                }
            },
        };
        let invocation = match &body {
            WatchBody::Lifecycle(record) => record.invocation_id(),
            WatchBody::Console(_) | WatchBody::Frame(_) | WatchBody::Tool(_) | WatchBody::Bazel(_) => {
                invocation_of(stored.headers.as_ref())
            }
        };
        Ok(Some(Self { position: stored.sequence, invocation, body }))
    }
}

fn read_tool(stored: &Stored) -> Result<ToolEvent, DecodeError> {
    bus::FromJson::from_json(&stored.payload)
}
