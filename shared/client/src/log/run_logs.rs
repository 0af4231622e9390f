//! The indexes of the logs of a build, made of the headers of its console messages.

use bus::{Bus, ConsoleChunk, ConsoleFrame, Stored, invocation_of, stream};
use console_log::{FRAME_MAX, LogIndex};
use model::{Attempt, InvocationId, OutputStream, Sequence};

use super::RunChoice;
use crate::ClientError;

/// Maximum number of messages in a piece, and of bytes: it is read in one batch.
pub(super) const PIECE_MESSAGES_MAX: usize = 256;
const PIECE_BYTES_MAX: u64 = 256 << 10;
/// Maximum number of messages that are indexed at a time.
const BATCH: usize = 2048;

/// Where a piece of a log is that was read from the bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BusPlace {
    /// In messages from one position to another.
    Chunks { first: Sequence, last: Sequence, messages: usize },
    /// In a blob.
    Frame(ConsoleFrame),
    /// Nowhere, for this reason.
    Nowhere(&'static str),
}

/// The log of one run.
#[derive(Debug, Clone)]
pub struct RunLog {
    pub attempt: Attempt,
    pub invocation: Option<InvocationId>,
    pub index: LogIndex<BusPlace>,
    /// End of the chunks of each stream, in bytes.
    stdout: u64,
    stderr: u64,
}

/// The logs of all runs of a build, up to a position of the event stream.
#[derive(Debug, Clone, Default)]
pub struct BuildLogs {
    runs: Vec<RunLog>,
    read_to: Sequence,
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
        if let Some(bytes) = chunk.dropped {
            self.index.push(BusPlace::Nowhere("it was not stored"), bytes, 0);
            return;
        }
        let (bytes, lines) = (chunk.data.len() as u64, line_ends(&chunk.data));
        let end = match chunk.stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        let before = chunk.offset.saturating_sub(*end);
        *end = chunk.offset.saturating_add(bytes);
        if before > 0 {
            self.index.push(BusPlace::Nowhere(NOT_ON_BUS), before, 0);
        }
        let grew = self.index.grow_last(bytes, lines, |piece| match &mut piece.place {
            BusPlace::Chunks { last, messages, .. }
                if *messages < PIECE_MESSAGES_MAX && piece.bytes + bytes <= PIECE_BYTES_MAX =>
            {
                (*last, *messages) = (position, *messages + 1);
                true
            }
            BusPlace::Chunks { .. } | BusPlace::Frame(_) | BusPlace::Nowhere(_) => false,
        });
        if !grew {
            let place = BusPlace::Chunks { first: position, last: position, messages: 1 };
            self.index.push(place, bytes, lines);
        }
    }

    fn add_frame(&mut self, frame: ConsoleFrame) {
        if frame.bytes > FRAME_MAX as u64 || frame.lines > frame.bytes {
            self.index.push(BusPlace::Nowhere("its message has wrong sizes"), 0, 0);
            return;
        }
        let before = frame.offset.saturating_sub(self.index.bytes());
        if before > 0 {
            self.index.push(BusPlace::Nowhere(NOT_ON_BUS), before, 0);
        }
        self.index.push(BusPlace::Frame(frame), frame.bytes, frame.lines);
    }
}

const NOT_ON_BUS: &str = "its messages are not on the bus";

fn line_ends(data: &[u8]) -> u64 {
    data.iter().map(|byte| u64::from(*byte == b'\n')).sum()
}
