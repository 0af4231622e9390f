//! What a watcher is handed.

use bus::{BusError, ConsoleChunk, DecodeError, EventKind, EventSubject, Stored};
use model::{BuildRecord, Sequence, State, ToolEvent};

/// An event of a build.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchEvent {
    /// Its position: watch from here to go on behind it.
    pub position: Sequence,
    /// What it tells.
    pub body: WatchBody,
}

/// What an event tells.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchBody {
    /// The build's state changed.
    Lifecycle(Box<BuildRecord>),
    /// Output of the command.
    Console(ConsoleChunk),
    /// What the worker did around it.
    Tool(ToolEvent),
}

impl WatchEvent {
    /// The kind of the event.
    pub fn kind(&self) -> EventKind {
        match self.body {
            WatchBody::Lifecycle(_) => EventKind::Lifecycle,
            WatchBody::Console(_) => EventKind::Console,
            WatchBody::Tool(_) => EventKind::Tool,
        }
    }

    /// Whether nothing follows.
    pub fn is_last(&self) -> bool {
        match &self.body {
            WatchBody::Lifecycle(record) => record.state() == State::Finished,
            WatchBody::Console(_) | WatchBody::Tool(_) => false,
        }
    }

    /// Reads a stored event. None: one of a kind, or of a form, that this program does not know.
    pub(crate) fn read(stored: &Stored) -> Result<Option<Self>, BusError> {
        let Ok(subject) = stored.subject.parse::<EventSubject>() else { return Ok(None) };
        let body = match subject.kind {
            EventKind::Lifecycle => WatchBody::Lifecycle(Box::new(stored.record()?)),
            EventKind::Console => match ConsoleChunk::read(stored.headers.as_ref(), &stored.payload) {
                Some(chunk) => WatchBody::Console(chunk),
                None => return Ok(None),
            },
            EventKind::Tool => match read_tool(stored) {
                Ok(tool) => WatchBody::Tool(tool),
                Err(error) => {
                    tracing::debug!(position = %stored.sequence, %error, "a tool event of an unknown form");
                    return Ok(None);
                }
            },
        };
        Ok(Some(Self { position: stored.sequence, body }))
    }
}

fn read_tool(stored: &Stored) -> Result<ToolEvent, DecodeError> {
    bus::decode(bus::Encoding::Json, &stored.payload)
}
