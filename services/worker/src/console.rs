//! A build's console output: it goes to the bus, then in frames to the store, then it is dropped. Each change is marked
//! in the output at the place where it happens, so that readers know what they miss.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use bus::{Chunk, ChunkFault, GuardedWriter};
use bytes::Bytes;
use cas::Cas;
use console_log::Packer;
use model::{LogSummary, OutputStream, ToolEvent};
use service::{Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tokio::sync::Mutex;
use tracing::warn;

use crate::frames::Frames;

/// Limits on the console output of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes published on the bus.
    pub(crate) bus: u64,
    /// Bytes kept in total, on the bus and in the store.
    pub(crate) total: u64,
}

/// Destination of the output of a run.
pub(crate) struct Console {
    output: Arc<Mutex<Output>>,
}

/// Time limit for a write: after this the lease has expired and the run is over anyway.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time that output waits for a full frame.
const FRAME_AFTER: Duration = Duration::from_secs(1);

impl Console {
    pub(crate) fn new(writer: GuardedWriter, limits: Limits, cas: Cas) -> Self {
        let (frames, summary) = (Frames::new(cas), LogSummary::default());
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
        Self { output: Arc::new(Mutex::new(output)) }
    }

    /// Writes a chunk of output.
    pub(crate) async fn write(&mut self, stream: OutputStream, data: Bytes) -> Result<(), ChunkFault> {
        let mut output = self.output.lock().await;
        output.write(stream, data).await?;
        if output.waits() && !output.timed {
            output.timed = true;
            tokio::spawn(publish_later(Arc::downgrade(&self.output)));
        }
        Ok(())
    }

    /// Publishes a tool event of the worker.
    pub(crate) async fn tool(&mut self, event: &ToolEvent) -> Result<(), ChunkFault> {
        self.output.lock().await.writer.write(Chunk::Tool(event), PATIENCE).await
    }

    /// Writes a line from the worker into the command's output.
    pub(crate) async fn say(&mut self, line: &str) -> Result<(), ChunkFault> {
        self.write(OutputStream::Stderr, Bytes::from(format!("forebay: {line}\n"))).await
    }

    /// Stores and publishes the output that still waits, until `stopped` returns. Returns the summary, in which output
    /// that cannot be stored counts as dropped.
    pub(crate) async fn finish(self, stopped: impl Future<Output = ()>) -> LogSummary {
        let mut output = self.output.lock().await;
        let published = tokio::select! {
            published = output.publish_all() => published,
            () = stopped => Ok(()),
        };
        if let Err(error) = published {
            warn!(error = telemetry::error_chain(&error), "cannot publish the end of a log");
        }
        let lost = output.taken - output.stored;
        output.summary.dropped_bytes += lost;
        output.summary.clone()
    }
}

/// Publishes output that waits for a full frame.
async fn publish_later(output: Weak<Mutex<Output>>) {
    tokio::time::sleep(FRAME_AFTER).await;
    let Some(output) = output.upgrade() else { return };
    let mut output = output.lock().await;
    output.timed = false;
    if let Err(fault) = output.publish_all().await {
        output.fault = Some(fault);
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
    /// Bytes taken for frames, and those of frames that were stored.
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
            self.publish_all().await?;
            self.end(stream, offset).await?;
        }
        if self.ended {
            self.summary.dropped_bytes += length;
            return Ok(());
        }
        self.taken += length;
        self.packer.get_or_insert_with(|| Packer::after(stdout, stderr)).push(stream, &data);
        while let Some(raw) = self.packer.as_mut().and_then(Packer::full) {
            self.make_room().await?;
            self.frames.start(raw);
        }
        Ok(())
    }

    /// Whether output was taken that is not published.
    fn waits(&self) -> bool {
        self.taken > self.stored && !self.ended
    }

    /// Marks that no more output of this run follows.
    async fn end(&mut self, stream: OutputStream, offset: u64) -> Result<(), ChunkFault> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        self.writer.write(Chunk::Dropped { stream, offset, bytes: 0 }, PATIENCE).await
    }

    async fn make_room(&mut self) -> Result<(), ChunkFault> {
        while self.frames.is_full() {
            self.publish_next().await?;
        }
        Ok(())
    }

    /// Publishes all output that was taken.
    async fn publish_all(&mut self) -> Result<(), ChunkFault> {
        if let Some(raw) = self.packer.as_mut().and_then(Packer::rest) {
            self.make_room().await?;
            self.frames.start(raw);
        }
        while self.publish_next().await? {}
        Ok(())
    }

    /// Publishes the oldest frame once it is stored; returns whether there was one. A store that is full or away loses
    /// the log, not the build.
    async fn publish_next(&mut self) -> Result<bool, ChunkFault> {
        let Some((extent, stored)) = self.frames.next().await else { return Ok(false) };
        if self.ended {
            return Ok(true);
        }
        let blob = match stored {
            Ok(blob) => blob,
            Err(error) => {
                warn!(error, bytes = extent.bytes, "cannot store a part of a log: the rest is dropped");
                self.end(OutputStream::Stdout, self.summary.stdout_bytes).await?;
                return Ok(true);
            }
        };
        self.writer.name_blob(&blob, PATIENCE).await?;
        let (offset, bytes, lines) = (extent.offset, extent.bytes, extent.lines);
        self.writer.write(Chunk::Frame { blob, offset, bytes, lines }, PATIENCE).await?;
        self.stored += bytes;
        crash_point(Step::ChunkWritten);
        Ok(true)
    }
}
