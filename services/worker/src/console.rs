//! A build's console output: it goes to the bus, then in frames to the store, then it is dropped. Each change is marked
//! in the output at the place where it happens, so that readers know what they miss.

use std::{
    borrow::Cow,
    sync::{Arc, Weak},
    time::Duration,
};

use bus::{Chunk, ChunkFault, GuardedWriter};
use bytes::Bytes;
use cas::Cas;
use console_log::Packer;
use model::{LogSummary, OutputStream, ToolEvent};
use secrets::Masks;
use service::{Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tokio::{
    sync::{Mutex, MutexGuard, watch},
    time::Instant,
};
use tracing::warn;

use crate::{
    frames::{Extent, Frames, Ready},
    masking::Masking,
    stop::Stop,
};

/// Limits on the console output of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes published on the bus.
    pub(crate) bus: u64,
    /// Bytes kept in total, on the bus and in the store.
    pub(crate) total: u64,
}

/// When the output of a run must not wait for the store.
pub(crate) struct Hurry {
    pub(crate) stop: Stop,
    pub(crate) timeout_at: Instant,
}

impl Hurry {
    fn is_wanted(&self) -> bool {
        self.stop.cause().is_some() || Instant::now() >= self.timeout_at
    }

    async fn wanted(&self) {
        tokio::select! {
            () = self.stop.wanted() => {}
            () = tokio::time::sleep_until(self.timeout_at) => {}
        }
    }
}

/// Destination of the output of a run.
pub(crate) struct Console {
    output: Arc<Mutex<Output>>,
    /// Changes when a frame was stored or lost.
    changed: watch::Receiver<()>,
    hurry: Hurry,
    /// Masks secrets, if the build has some.
    masking: Option<Masking>,
}

/// Time limit for a write: after this the lease has expired and the run is over anyway.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time that output waits for a full frame.
const FRAME_AFTER: Duration = Duration::from_secs(1);

impl Console {
    pub(crate) fn new(writer: GuardedWriter, limits: Limits, cas: Cas, hurry: Hurry) -> Self {
        let (frames, summary) = (Frames::new(cas), LogSummary::default());
        let changed = frames.changes();
        let output = Output {
            writer,
            limits,
            summary,
            packer: None,
            frames,
            taken: 0,
            stored: 0,
            ended: false,
            timed: false,
            fault: None,
        };
        Self { output: Arc::new(Mutex::new(output)), changed, hurry, masking: None }
    }

    /// Masks these secrets from now on.
    pub(crate) fn mask(&mut self, masks: &Arc<Masks>) {
        self.masking = Some(Masking::new(masks));
    }

    /// Writes a chunk of output of the command.
    pub(crate) async fn write(&mut self, stream: OutputStream, data: Bytes) -> Result<(), ChunkFault> {
        let data = match &mut self.masking {
            Some(masking) => masking.push(stream, &data),
            None => data,
        };
        self.put(stream, data).await
    }

    /// Returns when output has been held back for a while that could be the beginning of a secret; never if there is none.
    pub(crate) async fn held_back(&self) {
        match &self.masking {
            Some(masking) => masking.quiet().await,
            None => std::future::pending().await,
        }
    }

    /// Writes what was held back, as far as it shows nothing of a secret.
    pub(crate) async fn release(&mut self) -> Result<(), ChunkFault> {
        let Some(masking) = &mut self.masking else { return Ok(()) };
        for (stream, data) in masking.pause() {
            self.put(stream, data).await?;
        }
        Ok(())
    }

    /// Writes all that was held back: the command has ended.
    pub(crate) async fn end_streams(&mut self) -> Result<(), ChunkFault> {
        let Some(masking) = &mut self.masking else { return Ok(()) };
        for (stream, data) in masking.finish() {
            self.put(stream, data).await?;
        }
        Ok(())
    }

    async fn put(&mut self, stream: OutputStream, data: Bytes) -> Result<(), ChunkFault> {
        if data.is_empty() {
            return Ok(());
        }
        let mut output = self.with_room().await?;
        output.write(stream, data).await?;
        let begin = output.waits() && !std::mem::replace(&mut output.timed, true);
        drop(output);
        if begin {
            tokio::spawn(publish_later(Arc::downgrade(&self.output), self.changed.clone()));
        }
        Ok(())
    }

    /// The output, once it can start a frame or the run must end.
    async fn with_room(&mut self) -> Result<MutexGuard<'_, Output>, ChunkFault> {
        loop {
            self.changed.mark_unchanged();
            let mut output = self.output.lock().await;
            output.publish_ready().await?;
            if output.frames.has_room() || self.hurry.is_wanted() {
                return Ok(output);
            }
            drop(output);
            tokio::select! {
                _ = self.changed.changed() => {}
                () = self.hurry.wanted() => {}
            }
        }
    }

    /// Publishes a tool event of the worker.
    pub(crate) async fn tool(&mut self, event: &ToolEvent) -> Result<(), ChunkFault> {
        self.output.lock().await.writer.write(Chunk::Tool(event), PATIENCE).await
    }

    /// Writes a line from the worker into the command's output.
    pub(crate) async fn say(&mut self, line: &str) -> Result<(), ChunkFault> {
        let line = format!("forebay: {}\n", self.masked(line));
        self.put(OutputStream::Stderr, Bytes::from(line)).await
    }

    /// A text without secrets.
    pub(crate) fn masked<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.masking.as_ref().map_or(Cow::Borrowed(text), |masking| masking.text(text))
    }

    /// Stores and publishes the output that still waits, until `stopped` returns. Returns the summary, in which output
    /// that cannot be stored counts as dropped.
    pub(crate) async fn finish(mut self, stopped: impl Future<Output = ()>) -> LogSummary {
        let published = tokio::select! {
            published = self.publish_all() => published,
            () = stopped => Ok(()),
        };
        if let Err(error) = published {
            warn!(error = telemetry::error_chain(&error), "cannot publish the end of a log");
        }
        let mut output = self.output.lock().await;
        let lost = output.taken - output.stored;
        output.summary.dropped_bytes += lost;
        output.summary.clone()
    }

    async fn publish_all(&mut self) -> Result<(), ChunkFault> {
        loop {
            self.changed.mark_unchanged();
            let mut output = self.output.lock().await;
            output.cut_rest();
            output.publish_ready().await?;
            if !output.waits() {
                return Ok(());
            }
            drop(output);
            // The other end is in the output, which lives.
            let _ = self.changed.changed().await;
        }
    }
}

/// Publishes output that waits for a full frame, and frames as they are stored.
async fn publish_later(output: Weak<Mutex<Output>>, mut changed: watch::Receiver<()>) {
    let mut cut_at = Instant::now() + FRAME_AFTER;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(cut_at) => {}
            // If the output is gone, so is the run.
            _ = changed.changed() => {}
        }
        let Some(output) = output.upgrade() else { return };
        let mut output = output.lock().await;
        if Instant::now() >= cut_at {
            cut_at = Instant::now() + FRAME_AFTER;
            if output.frames.has_room() {
                output.cut_rest();
            }
        }
        if let Err(fault) = output.publish_ready().await {
            output.fault = Some(fault);
        } else if output.waits() {
            continue;
        }
        output.timed = false;
        return;
    }
}

/// The output of a run so far.
struct Output {
    writer: GuardedWriter,
    limits: Limits,
    summary: LogSummary,
    /// Cuts output into frames; none while output goes to the bus.
    packer: Option<Packer>,
    frames: Frames,
    /// Bytes taken for frames, and those of frames that were stored and published.
    taken: u64,
    stored: u64,
    /// Whether all further output is dropped.
    ended: bool,
    /// Whether a task will publish what waits.
    timed: bool,
    /// Why the last frames could not be published.
    fault: Option<ChunkFault>,
}

impl Output {
    async fn write(&mut self, stream: OutputStream, data: Bytes) -> Result<(), ChunkFault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let length = data.len() as u64;
        let (stdout, stderr) = (self.summary.stdout_bytes, self.summary.stderr_bytes);
        let seen = match stream {
            OutputStream::Stdout => &mut self.summary.stdout_bytes,
            OutputStream::Stderr => &mut self.summary.stderr_bytes,
        };
        let offset = *seen;
        *seen += length;
        count(Counter::ConsoleBytes, &[(Label::Stream, stream.as_str())], length);
        if self.packer.is_none() && !self.ended && self.summary.bus_bytes + length <= self.limits.bus {
            self.summary.bus_bytes += length;
            self.writer.write(Chunk::Console { stream, offset, data }, PATIENCE).await?;
            crash_point(Step::ChunkWritten);
            return Ok(());
        }
        let room = self.limits.total.saturating_sub(self.summary.bus_bytes + self.taken);
        if !self.ended && length > room {
            self.cut_rest();
            self.frames.end(stream, offset);
            self.ended = true;
            self.publish_ready().await?;
        }
        if self.ended {
            self.summary.dropped_bytes += length;
            return Ok(());
        }
        self.taken += length;
        self.packer.get_or_insert_with(|| Packer::after(stdout, stderr)).push(stream, &data);
        while let Some(raw) = self.packer.as_mut().and_then(Packer::full) {
            self.frames.start(raw);
        }
        Ok(())
    }

    /// Whether output was taken that is not published.
    fn waits(&self) -> bool {
        !self.frames.is_empty() || self.packer.as_ref().is_some_and(|packer| !packer.is_empty())
    }

    /// Starts a frame with the output that waits for one.
    fn cut_rest(&mut self) {
        if let Some(raw) = self.packer.as_mut().and_then(Packer::rest) {
            self.frames.start(raw);
        }
    }

    /// Publishes the frames that are stored, in order, and marks those that are lost: a store that is full or away loses
    /// output, not the build.
    async fn publish_ready(&mut self) -> Result<(), ChunkFault> {
        while let Some(ready) = self.frames.next() {
            match ready {
                Ready::Stored(extent, blob) => {
                    self.writer.name_blob(&blob, PATIENCE).await?;
                    let (offset, bytes, lines) = (extent.offset, extent.bytes, extent.lines);
                    self.writer.write(Chunk::Frame { blob, offset, bytes, lines }, PATIENCE).await?;
                    self.stored += bytes;
                    crash_point(Step::ChunkWritten);
                }
                Ready::Lost(extent, error) => {
                    warn!(error, offset = extent.offset, bytes = extent.bytes, "a part of a log is lost");
                    self.mark_lost(&extent).await?;
                }
                Ready::End(stream, offset) => {
                    self.writer.write(Chunk::Dropped { stream, offset, bytes: 0 }, PATIENCE).await?;
                }
            }
        }
        Ok(())
    }

    async fn mark_lost(&mut self, extent: &Extent) -> Result<(), ChunkFault> {
        for (stream, part) in [(OutputStream::Stdout, extent.stdout), (OutputStream::Stderr, extent.stderr)] {
            if part.bytes > 0 {
                let mark = Chunk::Dropped { stream, offset: part.offset, bytes: part.bytes };
                self.writer.write(mark, PATIENCE).await?;
            }
        }
        Ok(())
    }
}
