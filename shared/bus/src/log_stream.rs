//! Log streams that clients write piece by piece. The last message on a stream's subject states its length, and a
//! piece is written only directly after the one that its writer knows: committed bytes never change.

use std::time::Duration;

use bytes::Bytes;
use model::{BlobDigest, Sequence};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    Bus, BusError, FromJson as _, HEADER_OFFSET, LogSubject, Message, Signals, Stored,
    headers::{LOG_END, header},
    message, stream,
    transition::Write,
};

message!(LogHead);

/// First message of a log stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogHead {
    /// Name of the resource that the log stream belongs to.
    pub parent: String,
    /// Digest of the token that grants write access.
    pub token: BlobDigest,
}

/// Current end of a log stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEnd {
    /// Position of its last message.
    pub sequence: Sequence,
    /// Length of the log in bytes.
    pub length: u64,
    /// Whether the log is complete: nothing can be appended any more.
    pub complete: bool,
}

/// A piece of a log stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPiece {
    /// Position of its message.
    pub sequence: Sequence,
    /// Offset in the log, in bytes.
    pub offset: u64,
    pub data: Bytes,
    /// Whether this is the last piece of the log.
    pub last: bool,
}

/// Maximum number of messages in one read.
const PIECES_MAX: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);

impl LogPiece {
    /// Parses a stored message; `None` for the head.
    fn of(stored: Stored) -> Option<Self> {
        let offset = header(stored.headers.as_ref(), HEADER_OFFSET)?.parse().ok()?;
        let last = header(stored.headers.as_ref(), LOG_END).is_some();
        Some(Self { sequence: stored.sequence, offset, data: stored.payload, last })
    }
}

/// One log stream, which may not exist.
#[derive(Debug, Clone, Copy)]
pub struct LogStream<'a> {
    bus: &'a Bus,
    id: Uuid,
}

impl Bus {
    /// The log stream with this id.
    pub fn log_stream(&self, id: Uuid) -> LogStream<'_> {
        LogStream { bus: self, id }
    }
}

impl LogStream<'_> {
    /// Signals each piece that is written from now on; a signal may be lost.
    pub async fn signals(self) -> Result<Signals, BusError> {
        self.bus.signals_on(LogSubject(self.id).live()).await
    }

    /// Creates the log stream. Its id is random, so no other log stream has it.
    pub async fn create(self, head: &LogHead) -> Result<(), BusError> {
        let write = self.write(Sequence(0), head.to_json());
        match self.bus.compare_and_set(&write, PATIENCE).await? {
            Ok(_) => Ok(()),
            Err(_) => {
                Err(BusError::Timeout { what: format!("creating log stream {} (already exists)", self.id) })
            }
        }
    }

    /// The first message, if the log stream exists.
    pub async fn head(self) -> Result<Option<LogHead>, BusError> {
        let subject = self.subject();
        let found = self.bus.stream(stream::LOGS).read_from(&subject, Sequence(0), 1).await?;
        let Some(first) = found.events.first() else { return Ok(None) };
        let corrupt = |source| BusError::Corrupt { sequence: first.sequence.0, subject, source };
        LogHead::from_json(&first.payload).map(Some).map_err(corrupt)
    }

    /// The current end, if the log stream exists.
    pub async fn end(self) -> Result<Option<LogEnd>, BusError> {
        let last = self.bus.stream(stream::LOGS).last(&self.subject()).await?;
        Ok(last.map(end_of))
    }

    /// Appends `data` after `end`; `last` completes the log. If another write came first, returns the current end
    /// as the inner error.
    pub async fn append(
        self,
        end: &LogEnd,
        data: Bytes,
        last: bool,
    ) -> Result<Result<LogEnd, Option<LogEnd>>, BusError> {
        let length = end.length + data.len() as u64;
        let mut write = self.write(end.sequence, data);
        write.headers.insert(HEADER_OFFSET, end.length.to_string().as_str());
        if last {
            write.headers.insert(LOG_END, "1");
        }
        match self.bus.compare_and_set(&write, PATIENCE).await? {
            Ok(sequence) => Ok(Ok(LogEnd { sequence, length, complete: last })),
            Err(now) => Ok(Err(now.map(end_of))),
        }
    }

    /// Reads pieces from position `from` on, in order, at most `PIECES_MAX`.
    pub async fn pieces(self, from: Sequence) -> Result<Vec<LogPiece>, BusError> {
        let found = self.bus.stream(stream::LOGS).read_from(&self.subject(), from, PIECES_MAX).await?;
        Ok(found.events.into_iter().filter_map(LogPiece::of).collect())
    }

    fn subject(self) -> String {
        LogSubject(self.id).to_string()
    }

    fn write(self, expected: Sequence, payload: Bytes) -> Write {
        Write::new(stream::LOGS, self.subject(), expected, payload)
    }
}

fn end_of(stored: Stored) -> LogEnd {
    let sequence = stored.sequence;
    match LogPiece::of(stored) {
        // Only the head exists: the log is empty.
        None => LogEnd { sequence, length: 0, complete: false },
        Some(piece) => {
            let length = piece.offset + piece.data.len() as u64;
            LogEnd { sequence, length, complete: piece.last }
        }
    }
}
