//! Reading a stream ahead of the writer: messages as rows, in batches.

use std::time::Duration;

use archive_store::{Batch, Cursor, LogStream};
use bus::{BazelEvents, Bus, EventContent, Follower, Start, Stored};
use cas::Cas;
use model::{BlobDigest, Sequence};
use tokio::{sync::mpsc, time::sleep};
use tracing::{debug, warn};

/// Maximum number of messages in a transaction.
const BATCH: usize = 1000;
/// Bytes of messages, and of build events from the store, after which a transaction takes no more.
const BYTES_MAX: u64 = 16 << 20;
/// Time between two transactions that are not full, because a transaction costs more than many rows.
const PACE: Duration = Duration::from_millis(200);
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// How long a blob is read again while the store fails. Then its message is set aside.
const PATIENCE: u32 = 60;

/// Where messages and the blobs that they name are read.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) bus: Bus,
    /// Absent if the store could not be opened.
    pub(crate) cas: Option<Cas>,
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
        while let Some(first) = messages.peek().map(|stored| stored.sequence) {
            let gap = if first > expected { gone(&source.bus, stream, expected, first).await } else { None };
            let part = source.complete(&mut messages).await;
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
    /// The next messages with their content, as many as fit into memory.
    async fn complete(&self, messages: &mut impl Iterator<Item = Stored>) -> Vec<Stored> {
        let (mut part, mut bytes) = (Vec::new(), 0_u64);
        while bytes < BYTES_MAX
            && let Some(mut stored) = messages.next()
        {
            if let Some(blob) = blob_of(&stored) {
                self.fetch(&blob, &mut stored).await;
            }
            bytes = bytes.saturating_add(stored.payload.len() as u64);
            part.push(stored);
        }
        part
    }

    /// Puts the content of a blob into the message that names it. A message whose blob is missing stays as it is.
    async fn fetch(&self, blob: &BlobDigest, stored: &mut Stored) {
        let Some(cas) = &self.cas else { return };
        for _ in 0..PATIENCE {
            match cas.get(blob).await {
                Ok(Some(content)) => {
                    BazelEvents::put_inline(stored, content);
                    return;
                }
                Ok(None) => return,
                Err(error) => {
                    debug!(%blob, error = telemetry::error_chain(&error), "cannot read a blob, retrying");
                }
            }
            sleep(RETRY_DELAY).await;
        }
        warn!(%blob, "the store did not answer, build events are set aside");
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
