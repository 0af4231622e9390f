//! Writing the archive: gets the right to write, resumes at the cursors, and starts over after an error.

use std::{error::Error, time::Duration};

use archive_store::{Batch, Cursor, LogStream, Retention, Store, StoreError, Writer};
use bus::{ArchivedBlobs, BusError, Stored, millis};
use model::Millis;
use service::Context;
use telemetry::metrics::{Counter, Gauge, Histogram, Label, count, observe, set};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};
use tracing::{error, info, warn};

use crate::{
    lag::{label, report_lag},
    reader::{Read, Source, read, rows},
    retries::{Retries, STEADY},
};

/// Time between two searches for builds that are too old, without new events.
const SWEEP: Duration = Duration::from_secs(60);
/// Time between two parts of a search, in which batches are written.
const SWEEP_PART: Duration = Duration::from_millis(200);

/// Why writing started over.
#[derive(Debug, thiserror::Error)]
enum Interrupted {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error("reading a stream ended unexpectedly")]
    Reader,
}

/// Writes until it is dropped. Logs each change between working and not working once.
pub(crate) async fn write(
    context: &Context,
    store: &Store,
    source: &Source,
    retention: &Retention,
    blobs: ArchivedBlobs,
) {
    let mut retries = Retries::new();
    loop {
        let ended = write_until_error(context, store, source, retention, blobs, &mut retries).await;
        set(Gauge::ArchiveWriter, &[], 0);
        let ended = match ended {
            Interrupted::Store(error) => Interrupted::Store(store.explain(error)),
            other @ (Interrupted::Bus(_) | Interrupted::Reader) => other,
        };
        if retries.failed() {
            let error = telemetry::error_chain(&ended as &dyn Error);
            warn!(error, "cannot write the archive, retrying; builds go on, and it will catch up");
        }
        sleep(retries.next_delay()).await;
        report_lag_of_others(context, store).await;
    }
}

async fn write_until_error(
    context: &Context,
    store: &Store,
    source: &Source,
    retention: &Retention,
    blobs: ArchivedBlobs,
    retries: &mut Retries,
) -> Interrupted {
    match Session::open(context, store, source, blobs, retries.is_broken()).await {
        Ok(mut session) => match session.run(retention, retries).await {
            Ok(never) => match never {},
            Err(error) => error,
        },
        Err(error) => error,
    }
}

/// The lag while this process does not write, as far as the database answers.
async fn report_lag_of_others(context: &Context, store: &Store) {
    let Ok(status) = store.status().await else { return };
    for stream in LogStream::ALL {
        let Some(known) = status.streams.get(stream.name()) else { continue };
        if let Ok((_, last)) = context.bus.stream(stream.name()).positions().await {
            report_lag(stream, last.0.saturating_sub(known.position.0), known.at_ms, context.bus.now());
        }
    }
}

/// Up to where each stream is archived.
#[derive(Clone, Copy)]
struct Cursors {
    events: Cursor,
    actions: Cursor,
    bazel: Cursor,
    audit: Cursor,
}

impl Cursors {
    fn of(&mut self, stream: LogStream) -> &mut Cursor {
        match stream {
            LogStream::Events => &mut self.events,
            LogStream::Actions => &mut self.actions,
            LogStream::Bazel => &mut self.bazel,
            LogStream::Audit => &mut self.audit,
        }
    }
}

/// Writing with one connection, from the cursors on.
struct Session<'a> {
    context: &'a Context,
    writer: Writer,
    cursors: Cursors,
    receiver: mpsc::Receiver<Read>,
    /// Ends the readers when the session ends.
    _readers: JoinSet<()>,
}

impl<'a> Session<'a> {
    async fn open(
        context: &'a Context,
        store: &Store,
        source: &Source,
        blobs: ArchivedBlobs,
        quiet: bool,
    ) -> Result<Self, Interrupted> {
        let mut writer = store.writer().await?;
        // Before it writes rows: the store keeps what they name.
        context.bus.buckets().put(&(), Some(&blobs)).await?;
        set(Gauge::ArchiveWriter, &[], 1);
        // One batch is read while another is written; a third one waits.
        let (sender, receiver) = mpsc::channel(1);
        let mut readers = JoinSet::new();
        let mut cursors = Vec::new();
        for stream in LogStream::ALL {
            let state = context.bus.stream(stream.name()).state().await?;
            let cursor = writer.cursor(stream, state.created).await?;
            if !quiet {
                info!(stream = stream.name(), after = %cursor.sequence(), last = %state.last, "archiving");
            }
            readers.spawn(read(source.clone(), stream, cursor, sender.clone()));
            cursors.push(cursor);
        }
        let [events, actions, bazel, audit] = cursors.try_into().map_err(|_| Interrupted::Reader)?;
        let cursors = Cursors { events, actions, bazel, audit };
        Ok(Self { context, writer, cursors, receiver, _readers: readers })
    }

    async fn run(
        &mut self,
        retention: &Retention,
        retries: &mut Retries,
    ) -> Result<std::convert::Infallible, Interrupted> {
        let (mut sweep_at, steady_at) = (Instant::now(), Instant::now() + STEADY);
        let mut steady = false;
        loop {
            let now = Instant::now();
            if !steady && now >= steady_at {
                self.writer.check_writing().await?;
                if retries.works() {
                    info!("the archive is written again");
                }
                steady = true;
            }
            // Due by time, also while batches are always ready.
            if now >= sweep_at {
                let more = self.writer.sweep(retention, self.context.bus.now()).await?;
                sweep_at = Instant::now() + if more { SWEEP_PART } else { SWEEP };
            }
            let until = if steady { sweep_at } else { sweep_at.min(steady_at) };
            match timeout_at(until, self.receiver.recv()).await {
                Ok(Some(read)) => self.store(read).await?,
                Ok(None) => return Err(Interrupted::Reader),
                Err(_) => {}
            }
        }
    }

    async fn store(&mut self, read: Read) -> Result<(), Interrupted> {
        let stream = read.stream;
        let label = [(Label::Log, label(stream))];
        let base = self.cursor(stream).base;
        if let Some((first, last)) = read.gap {
            let positions = |sequence: model::Sequence| {
                i64::try_from(sequence.0).unwrap_or(i64::MAX).saturating_add(base)
            };
            error!(stream = stream.name(), %first, %last, "messages were gone before they were archived");
            self.writer.record_gap(stream, positions(first), positions(last)).await?;
            count(Counter::ArchiveGapPositions, &label, last.0.saturating_sub(first.0).saturating_add(1));
        }
        let at = read.messages.last().map_or(Millis(0), |stored| stored.at);
        let pending = read.pending;
        match self.commit(&read.batch).await {
            Err(error) if error.is_about_rows() => {
                warn!(
                    error = telemetry::error_chain(&error),
                    "the database refuses rows of a batch, writing it in parts"
                );
                self.store_in_parts(stream, &read.messages).await?;
            }
            other => other?,
        }
        report_lag(stream, pending, at, self.context.bus.now());
        Ok(())
    }

    /// Writes messages one by one, and sets those aside whose rows the database refuses.
    async fn store_in_parts(&mut self, stream: LogStream, messages: &[Stored]) -> Result<(), StoreError> {
        let cursor = self.cursor(stream);
        for stored in messages {
            let one = std::slice::from_ref(stored);
            let Err(refused) = self.commit(&rows(stream, cursor, one)).await else { continue };
            if !refused.is_about_rows() {
                return Err(refused);
            }
            let mut batch = Batch::new(stream, cursor.base);
            batch.set_aside(stored, &telemetry::error_chain(&refused));
            self.commit(&batch).await?;
        }
        Ok(())
    }

    async fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let begun = Instant::now();
        let stream = batch.stream();
        let moved = self.writer.commit(batch, self.cursor(stream)).await?;
        *self.cursors.of(stream) = moved;
        let label = [(Label::Log, label(stream))];
        observe(Histogram::ArchiveBatchSeconds, &label, begun.elapsed());
        count(Counter::ArchiveBatches, &label, 1);
        count(Counter::ArchiveRows, &label, batch.rows() as u64);
        for (position, reason) in batch.refused() {
            warn!(stream = stream.name(), position, reason, "a message cannot be archived, set aside");
            count(Counter::ArchiveSetAside, &label, 1);
        }
        tracing::debug!(
            stream = stream.name(),
            ms = millis(begun.elapsed()),
            rows = batch.rows(),
            "archived a batch"
        );
        Ok(())
    }

    fn cursor(&self, stream: LogStream) -> Cursor {
        let mut cursors = self.cursors;
        *cursors.of(stream)
    }
}
