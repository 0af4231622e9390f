//! Reading a stream ahead of the writer: messages as rows, in batches.

use std::{iter::Peekable, time::Duration};

use archive_store::{Batch, Cursor, LogStream};
use bus::{BazelEvents, Bus, EventContent, Follower, Start, Stored};
use model::{BlobDigest, Sequence};
use tokio::{sync::mpsc, time::sleep};
use tracing::warn;

use crate::{
    blobs::{Answer, Blobs},
    lag::report_lag,
    retries::Delay,
};

/// Maximum number of messages in a transaction.
const BATCH: usize = 1000;
/// Bytes of messages, and of build events from the store, after which a transaction takes no more.
const BYTES_MAX: u64 = 16 << 20;
/// Time between two transactions that are not full, because a transaction costs more than many rows.
const PACE: Duration = Duration::from_millis(200);

/// Where messages and the blobs that they name are read.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) bus: Bus,
    pub(crate) blobs: Blobs,
}

/// Consecutive messages, and the rows that they give.
pub(crate) struct Read {
    pub(crate) stream: LogStream,
    pub(crate) messages: Vec<Stored>,
    pub(crate) batch: Batch,
    /// Positions that were gone before these messages.
    pub(crate) gap: Option<(Sequence, Sequence)>,
    /// Number of messages that the stream has after these.
    pub(crate) pending: u64,
}

/// Reads what follows `cursor` and sends it, until the receiver is gone.
pub(crate) async fn read(source: Source, stream: LogStream, cursor: Cursor, sender: mpsc::Sender<Read>) {
    let mut expected = Sequence(cursor.sequence().0.saturating_add(1));
    let start = Start::After(cursor.sequence());
    let mut follower = Follower::new(&source.bus, stream.name(), stream.filter(), start);
    loop {
        let messages = tokio::select! {
            messages = follower.next(BATCH) => messages,
            () = sender.closed() => return,
        };
        let full = messages.len() >= BATCH;
        let mut messages = messages.into_iter().peekable();
        let mut delay = Delay::new();
        while let Some((first, at)) = messages.peek().map(|stored| (stored.sequence, stored.at)) {
            let part = source.complete(&mut messages).await;
            if part.is_empty() {
                // The stream waits for the store; the others go on.
                let waiting = follower.pending().saturating_add(messages.len() as u64);
                report_lag(stream, waiting, at, source.bus.now());
                sleep(delay.next()).await;
                continue;
            }
            delay = Delay::new();
            let gap = if first > expected { gone(&source.bus, stream, expected, first).await } else { None };
            expected = Sequence(part.last().map_or(first, |last| last.sequence).0.saturating_add(1));
            let pending = follower.pending().saturating_add(messages.len() as u64);
            let batch = rows(stream, cursor, &part);
            if sender.send(Read { stream, messages: part, batch, gap, pending }).await.is_err() {
                return;
            }
        }
        if !full {
            sleep(PACE).await;
        }
    }
}

/// The rows of some messages.
pub(crate) fn rows(stream: LogStream, cursor: Cursor, messages: &[Stored]) -> Batch {
    let mut batch = Batch::new(stream, cursor.base);
    for stored in messages {
        batch.add(stored);
    }
    batch
}

impl Source {
    /// The next messages with their content, as many as fit into memory; none if the first one is in a blob and the store
    /// is away. A message whose blob the store does not have stays as it is.
    async fn complete(&self, messages: &mut Peekable<impl Iterator<Item = Stored>>) -> Vec<Stored> {
        let (mut part, mut bytes) = (Vec::new(), 0_u64);
        while bytes < BYTES_MAX
            && let Some(stored) = messages.peek_mut()
        {
            if let Some(blob) = blob_of(stored) {
                match self.blobs.get(&blob).await {
                    Answer::Content(content) => BazelEvents::put_inline(stored, content),
                    Answer::Never => {}
                    Answer::Later => return part,
                }
            }
            bytes = bytes.saturating_add(stored.payload.len() as u64);
            part.extend(messages.next());
        }
        part
    }
}

/// The blob that has the build events of a message.
fn blob_of(stored: &Stored) -> Option<BlobDigest> {
    match BazelEvents::read(stored)?.content {
        EventContent::Blob(blob) => Some(blob),
        EventContent::Inline(_) => None,
    }
}

/// The positions from `expected` on that the stream has dropped; none if only single messages were removed.
async fn gone(
    bus: &Bus,
    stream: LogStream,
    expected: Sequence,
    first: Sequence,
) -> Option<(Sequence, Sequence)> {
    match bus.stream(stream.name()).positions().await {
        Ok((kept, _)) => {
            let end = Sequence(kept.min(first).0.saturating_sub(1));
            (end >= expected).then_some((expected, end))
        }
        Err(error) => {
            warn!(error = telemetry::error_chain(&error), "cannot find out whether the archive has a gap");
            None
        }
    }
}
