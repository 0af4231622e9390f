//! Reading a stream ahead of the writer: messages as rows, in batches.

use archive_store::{Batch, Cursor, LogStream};
use bus::{Bus, Follower, Start, Stored};
use model::Sequence;
use tokio::sync::mpsc;
use tracing::warn;

/// Maximum number of messages in a transaction.
const BATCH: usize = 1000;

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
pub(crate) async fn read(bus: Bus, stream: LogStream, cursor: Cursor, sender: mpsc::Sender<Read>) {
    let mut expected = Sequence(cursor.sequence().0.saturating_add(1));
    let mut follower = Follower::new(&bus, stream.name(), stream.filter(), Start::After(cursor.sequence()));
    loop {
        let messages = tokio::select! {
            messages = follower.next(BATCH) => messages,
            () = sender.closed() => return,
        };
        let (Some(first), Some(last)) = (messages.first(), messages.last()) else { continue };
        let (first, last) = (first.sequence, last.sequence);
        let gap = if first > expected { gone(&bus, stream, expected, first).await } else { None };
        let batch = rows(stream, cursor, &messages);
        let read = Read { stream, messages, batch, gap, pending: follower.pending() };
        if sender.send(read).await.is_err() {
            return;
        }
        expected = Sequence(last.0.saturating_add(1));
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
