//! Console and tool events of a running build, refused by the store once the run is over.

use std::time::Duration;

use async_nats::{HeaderMap, jetstream::context::PublishErrorKind};
use bytes::Bytes;
use model::{Attempt, BuildKey, OutputStream, Sequence, ToolEvent};
use tokio::time::Instant;

use crate::{
    Bus, BusError, Encoding, EventKind, EventSubject, encode,
    headers::{
        CONTENT_TYPE, EXPECTED, EXPECTED_SUBJECT, HEADER_ATTEMPT, HEADER_DROPPED, HEADER_OFFSET,
        HEADER_STREAM, MESSAGE_ID, header,
    },
    transition::is_conflict,
};

/// A piece of a build's console output, as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsoleChunk {
    /// Which output.
    pub stream: OutputStream,
    /// Which run.
    pub attempt: Attempt,
    /// Where it starts in that output, in bytes.
    pub offset: u64,
    /// How many bytes are left out here; then `data` is empty.
    pub dropped: Option<u64>,
    /// The bytes.
    pub data: Bytes,
}

impl ConsoleChunk {
    /// Reads a stored console message.
    pub fn read(headers: Option<&HeaderMap>, payload: &Bytes) -> Option<Self> {
        let stream = match header(headers, HEADER_STREAM)? {
            "stdout" => OutputStream::Stdout,
            "stderr" => OutputStream::Stderr,
            _ => return None,
        };
        Some(Self {
            stream,
            attempt: Attempt(header(headers, HEADER_ATTEMPT)?.parse().ok()?),
            offset: header(headers, HEADER_OFFSET)?.parse().ok()?,
            dropped: header(headers, HEADER_DROPPED).and_then(|n| n.parse().ok()),
            data: payload.clone(),
        })
    }
}

/// Where in its run a console or tool event stands; carried in its message id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunPlace {
    /// Position of the run's INVOCATION_STARTED.
    pub guard: Sequence,
    /// 1 is the first event of the run. A number is left out where an event could not be written.
    pub count: u64,
}

impl RunPlace {
    fn message_id(self, key: &BuildKey) -> String {
        format!("{key}.{}.{}", self.guard, self.count)
    }

    /// Reads the place of a stored or live message.
    pub fn read(headers: Option<&HeaderMap>) -> Option<Self> {
        let mut parts = header(headers, MESSAGE_ID)?.rsplit('.');
        let (count, guard) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { guard: Sequence(guard), count })
    }
}

/// What a worker writes between start and finish.
#[derive(Debug)]
pub enum Chunk<'a> {
    /// Output.
    Console {
        /// Which.
        stream: OutputStream,
        /// Where it starts.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// Bytes that are left out.
    Dropped {
        /// Which output.
        stream: OutputStream,
        /// Where they start.
        offset: u64,
        /// How many; 0 when it is not known yet.
        bytes: u64,
    },
    /// What the worker did.
    Tool(&'a ToolEvent),
}

/// Why a chunk was not written.
#[derive(Debug, thiserror::Error)]
pub enum ChunkFault {
    /// The run is over: someone else moved the build on.
    #[error("the run was ended by someone else")]
    RunEnded,
    /// The bus did not answer.
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// Writes the events of one run, one at a time, each guarded by the position of its INVOCATION_STARTED.
#[derive(Debug)]
pub struct GuardedWriter {
    bus: Bus,
    key: BuildKey,
    attempt: Attempt,
    guard: Sequence,
    count: u64,
}

impl GuardedWriter {
    /// A writer for the run that started at `guard`.
    pub fn new(bus: Bus, key: BuildKey, attempt: Attempt, guard: Sequence) -> Self {
        Self { bus, key, attempt, guard, count: 0 }
    }

    /// Writes one event; tries for at most `patience`.
    pub async fn write(&mut self, chunk: Chunk<'_>, patience: Duration) -> Result<(), ChunkFault> {
        self.count += 1;
        let (kind, mut headers, payload) = parts(chunk);
        headers.insert(HEADER_ATTEMPT, self.attempt.to_string().as_str());
        headers.insert(EXPECTED, self.guard.0.to_string().as_str());
        headers.insert(EXPECTED_SUBJECT, EventSubject::lifecycle(&self.key).to_string().as_str());
        // A repeat after a doubtful answer is dropped by the stream's duplicate window.
        let place = RunPlace { guard: self.guard, count: self.count };
        headers.insert(MESSAGE_ID, place.message_id(&self.key).as_str());
        let subject = EventSubject { key: self.key.clone(), kind }.to_string();
        let deadline = Instant::now() + patience;
        loop {
            let written = self.bus.publish_once(&subject, headers.clone(), payload.clone()).await;
            let Err(error) = written else { return Ok(()) };
            if error.kind() == PublishErrorKind::MaxPayloadExceeded {
                return Err(BusError::TooLarge { what: format!("an event of build {}", self.key) }.into());
            }
            // A state that cannot be read is not known yet.
            if is_conflict(&error) && self.run_ended().await.unwrap_or(false) {
                return Err(ChunkFault::RunEnded);
            }
            if Instant::now() >= deadline {
                return Err(BusError::failed(format!("writing an event of build {}", self.key))(error).into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn run_ended(&self) -> Result<bool, BusError> {
        let latest = self.bus.latest(&self.key).await?;
        Ok(latest.is_none_or(|(sequence, _)| sequence != self.guard))
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
        Chunk::Dropped { stream, offset, bytes } => {
            headers.insert(HEADER_STREAM, stream.as_str());
            headers.insert(HEADER_OFFSET, offset.to_string().as_str());
            headers.insert(HEADER_DROPPED, bytes.to_string().as_str());
            (EventKind::Console, headers, Bytes::new())
        }
        Chunk::Tool(event) => {
            headers.insert(CONTENT_TYPE, Encoding::Json.content_type());
            (EventKind::Tool, headers, encode(Encoding::Json, event))
        }
    }
}
