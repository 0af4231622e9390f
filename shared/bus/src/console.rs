//! Console and tool events of a running build; the stream refuses them once the attempt has ended.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use model::{
    Attempt, BlobDigest, BuildKey, BuildRecord, InvocationId, OutputStream, Sequence, ToolEvent,
    ToolInvocation,
};

use crate::{
    Bus, BusError, Encoding, EventKind, EventSubject, Message,
    guarded::{ChunkFault, publish_guarded},
    headers::{
        CONTENT_TYPE, HEADER_ATTEMPT, HEADER_BLOB, HEADER_BYTES, HEADER_DROPPED, HEADER_INVOCATION,
        HEADER_LINES, HEADER_OFFSET, HEADER_STREAM, MESSAGE_ID, header,
    },
    message,
};

message!(ToolEvent);

/// A piece of a build's console output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsoleChunk {
    pub stream: OutputStream,
    pub attempt: Attempt,
    /// Offset in that output, in bytes.
    pub offset: u64,
    /// Number of bytes omitted here; `data` is then empty.
    pub dropped: Option<u64>,
    pub data: Bytes,
}

impl ConsoleChunk {
    /// Parses a stored console message.
    pub fn read(headers: Option<&HeaderMap>, payload: &Bytes) -> Option<Self> {
        Some(Self {
            stream: header(headers, HEADER_STREAM)?.parse().ok()?,
            attempt: Attempt(header(headers, HEADER_ATTEMPT)?.parse().ok()?),
            offset: header(headers, HEADER_OFFSET)?.parse().ok()?,
            dropped: header(headers, HEADER_DROPPED).and_then(|n| n.parse().ok()),
            data: payload.clone(),
        })
    }
}

/// Console output of a run that is in the content-addressable store, as a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsoleFrame {
    pub attempt: Attempt,
    pub blob: BlobDigest,
    /// Offset in the whole console output, in bytes.
    pub offset: u64,
    /// Number of bytes of output.
    pub bytes: u64,
    /// Number of line ends.
    pub lines: u64,
}

impl ConsoleFrame {
    /// Parses a stored console message. None: it is a chunk.
    pub fn read(headers: Option<&HeaderMap>) -> Option<Self> {
        Some(Self {
            blob: header(headers, HEADER_BLOB)?.parse().ok()?,
            attempt: Attempt(header(headers, HEADER_ATTEMPT)?.parse().ok()?),
            offset: header(headers, HEADER_OFFSET)?.parse().ok()?,
            bytes: header(headers, HEADER_BYTES)?.parse().ok()?,
            lines: header(headers, HEADER_LINES)?.parse().ok()?,
        })
    }
}

/// The invocation that a console or tool event belongs to.
pub fn invocation_of(headers: Option<&HeaderMap>) -> Option<InvocationId> {
    header(headers, HEADER_INVOCATION)?.parse().ok()
}

/// Place of a console or tool event within its attempt; part of its message id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunPlace {
    /// Position of the attempt's INVOCATION_STARTED.
    pub guard: Sequence,
    /// Number of the event within the attempt, starting at 1. An event that could not be written leaves a gap.
    pub count: u64,
}

impl RunPlace {
    fn message_id(self, key: &BuildKey) -> String {
        format!("{key}.{}.{}", self.guard, self.count)
    }

    /// Parses the place of a stored or live message.
    pub fn read(headers: Option<&HeaderMap>) -> Option<Self> {
        let mut parts = header(headers, MESSAGE_ID)?.rsplit('.');
        let (count, guard) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { guard: Sequence(guard), count })
    }
}

/// An event that a worker writes between start and finish.
#[derive(Debug)]
pub enum Chunk<'a> {
    /// A piece of console output.
    Console {
        stream: OutputStream,
        /// Offset in the output, in bytes.
        offset: u64,
        data: Bytes,
    },
    /// A frame of console output in the store.
    Frame {
        blob: BlobDigest,
        /// Offset in the whole console output, in bytes.
        offset: u64,
        bytes: u64,
        lines: u64,
    },
    /// A gap in the console output.
    Dropped {
        stream: OutputStream,
        /// Offset of the gap in the output, in bytes.
        offset: u64,
        /// Length of the gap in bytes; 0 while it is not known yet.
        bytes: u64,
    },
    Tool(&'a ToolEvent),
}

/// Writes the events of one attempt, one at a time, each guarded by the position of its INVOCATION_STARTED.
#[derive(Debug)]
pub struct GuardedWriter {
    bus: Bus,
    key: BuildKey,
    attempt: Attempt,
    invocation: Option<InvocationId>,
    guard: Sequence,
    count: u64,
}

impl GuardedWriter {
    /// Creates a writer for the attempt that started with `record` at position `guard`.
    pub fn new(bus: Bus, record: &BuildRecord, guard: Sequence) -> Self {
        let (attempt, invocation) = (record.attempt, record.invocation_id());
        Self { bus, key: record.build.key(), attempt, invocation, guard, count: 0 }
    }

    /// Records that the run's console output is in `blob`, so that the store keeps it.
    ///
    /// # Errors
    ///
    /// Fails if the message cannot be stored within `patience`.
    pub async fn name_blob(&self, blob: &BlobDigest, patience: Duration) -> Result<(), BusError> {
        let name =
            self.invocation.map_or_else(|| self.key.id.to_string(), |invocation| invocation.to_string());
        let named: Result<ToolInvocation, _> = name.parse();
        match named {
            Ok(name) => self.bus.name_event_blob(&self.key.group, &name, blob, patience).await,
            Err(error) => {
                invariant::impossible!("an id is no name: {error}");
                Ok(())
            }
        }
    }

    /// Writes one event, retrying for at most `patience`.
    pub async fn write(&mut self, chunk: Chunk<'_>, patience: Duration) -> Result<(), ChunkFault> {
        self.count += 1;
        let (kind, mut headers, payload) = parts(chunk);
        headers.insert(HEADER_ATTEMPT, self.attempt.to_string().as_str());
        if let Some(invocation) = self.invocation {
            headers.insert(HEADER_INVOCATION, invocation.to_string().as_str());
        }
        // The stream's duplicate window drops a repeat after an uncertain answer.
        let place = RunPlace { guard: self.guard, count: self.count };
        headers.insert(MESSAGE_ID, place.message_id(&self.key).as_str());
        let subject = EventSubject { key: self.key.clone(), kind }.to_string();
        publish_guarded(&self.bus, (&self.key, self.guard), &subject, headers, payload, patience).await
    }
}

fn parts(chunk: Chunk<'_>) -> (EventKind, HeaderMap, Bytes) {
    let mut headers = HeaderMap::new();
    match chunk {
        Chunk::Console { stream, offset, data } => {
            headers.insert(HEADER_STREAM, stream.as_str());
            headers.insert(HEADER_OFFSET, offset.to_string().as_str());
            (EventKind::Console, headers, data)
        }
        Chunk::Frame { blob, offset, bytes, lines } => {
            headers.insert(HEADER_BLOB, blob.to_string().as_str());
            headers.insert(HEADER_OFFSET, offset.to_string().as_str());
            headers.insert(HEADER_BYTES, bytes.to_string().as_str());
            headers.insert(HEADER_LINES, lines.to_string().as_str());
            (EventKind::Console, headers, Bytes::new())
        }
        Chunk::Dropped { stream, offset, bytes } => {
            headers.insert(HEADER_STREAM, stream.as_str());
            headers.insert(HEADER_OFFSET, offset.to_string().as_str());
            headers.insert(HEADER_DROPPED, bytes.to_string().as_str());
            (EventKind::Console, headers, Bytes::new())
        }
        Chunk::Tool(event) => {
            headers.insert(CONTENT_TYPE, Encoding::Json.content_type());
            (EventKind::Tool, headers, event.to_json())
        }
    }
}
