//! The indexes of the logs of a build, made of the headers of its console messages.

use bus::{Bus, ConsoleChunk, ConsoleFrame, Stored, invocation_of, stream};
use bytes::Bytes;
use console_log::{FRAME_MAX, LogIndex};
use model::{Attempt, InvocationId, OutputStream, Sequence};

use super::RunChoice;
use crate::{ArchivedConsole, ClientError, WatchBody};

/// Maximum number of messages in a piece, and of bytes: it is read in one batch.
pub(super) const PIECE_MESSAGES_MAX: usize = 256;
const PIECE_BYTES_MAX: u64 = 256 << 10;
/// Maximum number of messages that are indexed at a time.
const BATCH: usize = 2048;

/// Where a piece of a log is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PiecePlace {
    /// In messages of the bus, from one position to another.
    Chunks { first: Sequence, last: Sequence, messages: usize },
    /// Here: the archive had it.
    Archived { stream: OutputStream, data: Bytes },
    /// In a blob of the store.
    Frame(ConsoleFrame),
    /// Nowhere, for this reason.
    Nowhere(&'static str),
}

/// The log of one run.
#[derive(Debug, Clone)]
pub struct RunLog {
    pub attempt: Attempt,
    pub invocation: Option<InvocationId>,
    pub index: LogIndex<PiecePlace>,
    /// End of the chunks of each stream, in bytes.
    stdout: u64,
    stderr: u64,
}

/// The logs of all runs of a build, up to a position of the event stream.
#[derive(Debug, Clone, Default)]
pub struct BuildLogs {
    runs: Vec<RunLog>,
    read_to: Sequence,
    is_archived: bool,
}

impl BuildLogs {
    /// Position of the last message that was read.
    pub fn read_to(&self) -> Sequence {
        self.read_to
    }

    /// Number of pieces of all logs.
    pub fn pieces(&self) -> usize {
        self.runs.iter().map(|run| run.index.pieces().len()).sum()
    }

    /// The log of a run. None: it has no output. An attempt may have several runs, of which the last one counts.
    pub fn run(&self, choice: RunChoice, last: Attempt) -> Option<&RunLog> {
        self.runs.iter().rev().find(|run| match choice {
            RunChoice::Last => run.attempt == last,
            RunChoice::Attempt(attempt) => run.attempt == attempt,
            RunChoice::Invocation(invocation) => run.invocation == Some(invocation),
        })
    }

    /// Reads the messages on `subject` that were stored since the last update, up to a position.
    ///
    /// # Errors
    ///
    /// Fails if the bus does not answer.
    pub(super) async fn update(
        &mut self,
        bus: &Bus,
        subject: &str,
        until: Sequence,
    ) -> Result<(), ClientError> {
        while self.read_to < until {
            let from = Sequence(self.read_to.0 + 1);
            let tail = bus.stream(stream::EVENTS).read_from(subject, from, BATCH).await?;
            tail.events.iter().for_each(|stored| self.add(stored));
            // The replica that answered may be behind, or the messages were just deleted.
            if tail.events.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Reads the logs from the archive.
    ///
    /// # Errors
    ///
    /// Fails if the archive does not answer.
    pub(super) async fn of_archive(mut console: ArchivedConsole) -> Result<Self, ClientError> {
        let mut logs = Self { is_archived: true, ..Self::default() };
        while let Some(event) = console.next().await? {
            match event.body {
                WatchBody::Console(chunk) => {
                    if let Some(run) = logs.run_of(chunk.attempt, event.invocation) {
                        run.add_archived(chunk);
                    }
                }
                WatchBody::Frame(frame) => {
                    if let Some(run) = logs.run_of(frame.reference.attempt, event.invocation) {
                        run.add_frame(frame.reference);
                    }
                }
                WatchBody::Lifecycle(_) | WatchBody::Tool(_) | WatchBody::Bazel(_) => {}
            }
        }
        Ok(logs)
    }

    /// Whether the output of chunks is in memory, because the bus has it no more.
    pub fn is_archived(&self) -> bool {
        self.is_archived
    }

    fn add(&mut self, stored: &Stored) {
        self.read_to = self.read_to.max(stored.sequence);
        let headers = stored.headers.as_ref();
        let invocation = invocation_of(headers);
        if let Some(chunk) = ConsoleChunk::read(headers, &stored.payload) {
            if let Some(run) = self.run_of(chunk.attempt, invocation) {
                run.add_chunk(&chunk, stored.sequence);
            }
        } else if let Some(frame) = ConsoleFrame::read(headers)
            && let Some(run) = self.run_of(frame.attempt, invocation)
        {
            run.add_frame(frame);
        }
    }

    /// The log of a run, which is added if it is new.
    fn run_of(&mut self, attempt: Attempt, invocation: Option<InvocationId>) -> Option<&mut RunLog> {
        let is_it = |run: &RunLog| run.attempt == attempt && run.invocation == invocation;
        if !self.runs.iter().any(is_it) {
            let index = LogIndex::default();
            self.runs.push(RunLog { attempt, invocation, index, stdout: 0, stderr: 0 });
        }
        self.runs.iter_mut().find(|run| is_it(run))
    }
}

impl RunLog {
    fn add_chunk(&mut self, chunk: &ConsoleChunk, position: Sequence) {
        let Some((bytes, lines)) = self.advance(chunk) else { return };
        let grew = self.index.grow_last(bytes, lines, |piece| match &mut piece.place {
            PiecePlace::Chunks { last, messages, .. }
                if *messages < PIECE_MESSAGES_MAX && piece.bytes + bytes <= PIECE_BYTES_MAX =>
            {
                (*last, *messages) = (position, *messages + 1);
                true
            }
            PiecePlace::Chunks { .. }
            | PiecePlace::Archived { .. }
            | PiecePlace::Frame(_)
            | PiecePlace::Nowhere(_) => false,
        });
        if !grew {
            let place = PiecePlace::Chunks { first: position, last: position, messages: 1 };
            self.index.push(place, bytes, lines);
        }
    }

    fn add_archived(&mut self, chunk: ConsoleChunk) {
        if let Some((bytes, lines)) = self.advance(&chunk) {
            let place = PiecePlace::Archived { stream: chunk.stream, data: chunk.data };
            self.index.push(place, bytes, lines);
        }
    }

    /// Adds what is missing before a chunk, and returns its bytes and line ends. None: it is a gap.
    fn advance(&mut self, chunk: &ConsoleChunk) -> Option<(u64, u64)> {
        if let Some(bytes) = chunk.dropped {
            self.index.push(PiecePlace::Nowhere("it was not stored"), bytes, 0);
            return None;
        }
        let (bytes, lines) = (chunk.data.len() as u64, line_ends(&chunk.data));
        let end = match chunk.stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        let before = chunk.offset.saturating_sub(*end);
        *end = chunk.offset.saturating_add(bytes);
        if before > 0 {
            self.index.push(PiecePlace::Nowhere(NOT_ON_BUS), before, 0);
        }
        Some((bytes, lines))
    }

    fn add_frame(&mut self, frame: ConsoleFrame) {
        if frame.bytes > FRAME_MAX as u64 || frame.lines > frame.bytes {
            self.index.push(PiecePlace::Nowhere("its message has wrong sizes"), 0, 0);
            return;
        }
        let before = frame.offset.saturating_sub(self.index.bytes());
        if before > 0 {
            self.index.push(PiecePlace::Nowhere(NOT_ON_BUS), before, 0);
        }
        self.index.push(PiecePlace::Frame(frame), frame.bytes, frame.lines);
    }
}

const NOT_ON_BUS: &str = "its messages are not on the bus";

fn line_ends(data: &[u8]) -> u64 {
    data.iter().map(|byte| u64::from(*byte == b'\n')).sum()
}
