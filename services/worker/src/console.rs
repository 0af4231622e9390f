//! A build's console output: it goes to the bus, then to a file for the store, then it is dropped. Each change is
//! marked where it happens.

use std::{path::PathBuf, time::Duration};

use bus::{Chunk, ChunkFault, GuardedWriter};
use bytes::Bytes;
use cas::Cas;
use model::{BlobDigest, Digest, DigestFunction, LogSummary, OutputFile, OutputStream, ToolEvent};
use service::{Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tokio::{fs::File, io::AsyncWriteExt as _, time::Instant};
use tracing::warn;

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
    writer: GuardedWriter,
    limits: Limits,
    overflow_path: PathBuf,
    overflow: Option<File>,
    overflow_bytes: u64,
    summary: LogSummary,
}

/// Time limit for a write: after this the lease has expired and the run is over anyway.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause before another attempt to store the end of a log.
const RETRY: Duration = Duration::from_secs(1);

impl Console {
    pub(crate) fn new(writer: GuardedWriter, limits: Limits, overflow_path: PathBuf) -> Self {
        let summary = LogSummary::default();
        Self { writer, limits, overflow_path, overflow: None, overflow_bytes: 0, summary }
    }

    /// Writes a chunk of output.
    pub(crate) async fn write(&mut self, stream: OutputStream, data: Bytes) -> Result<(), ChunkFault> {
        let length = data.len() as u64;
        let seen = match stream {
            OutputStream::Stdout => &mut self.summary.stdout_bytes,
            OutputStream::Stderr => &mut self.summary.stderr_bytes,
        };
        let offset = *seen;
        *seen += length;
        count(Counter::ConsoleBytes, &[(Label::Stream, stream.as_str())], length);
        if self.overflow.is_none() && self.summary.bus_bytes + length <= self.limits.bus {
            self.summary.bus_bytes += length;
            self.writer.write(Chunk::Console { stream, offset, data }, PATIENCE).await?;
            crash_point(Step::ChunkWritten);
            return Ok(());
        }
        if self.overflow.is_none() && self.overflow_bytes == 0 && self.summary.dropped_bytes == 0 {
            // No more output of this run goes to the bus from here on.
            self.writer.write(Chunk::Dropped { stream, offset, bytes: 0 }, PATIENCE).await?;
        }
        self.keep_aside(data).await;
        Ok(())
    }

    /// Publishes a tool event of the worker.
    pub(crate) async fn tool(&mut self, event: &ToolEvent) -> Result<(), ChunkFault> {
        self.writer.write(Chunk::Tool(event), PATIENCE).await
    }

    /// Writes a line from the worker into the command's output.
    pub(crate) async fn say(&mut self, line: &str) -> Result<(), ChunkFault> {
        self.write(OutputStream::Stderr, Bytes::from(format!("forebay: {line}\n"))).await
    }

    async fn keep_aside(&mut self, data: Bytes) {
        let length = data.len() as u64;
        let room = self.limits.total.saturating_sub(self.summary.bus_bytes + self.overflow_bytes);
        if length > room || self.summary.dropped_bytes > 0 {
            if self.summary.dropped_bytes == 0 {
                let mark = format!("\nforebay: log limit of {} bytes reached\n", self.limits.total);
                // A full disk loses the log, not the build.
                let _ = self.append(mark.as_bytes()).await;
            }
            self.summary.dropped_bytes += length;
            return;
        }
        if self.append(&data).await.is_ok() {
            self.overflow_bytes += length;
        } else {
            // A full disk loses the log, not the build.
            self.summary.dropped_bytes += length;
        }
    }

    async fn append(&mut self, data: &[u8]) -> std::io::Result<()> {
        let file = match &mut self.overflow {
            Some(file) => file,
            none => none.insert(File::create(&self.overflow_path).await?),
        };
        file.write_all(data).await
    }

    /// Stores the output that exceeded the limit of the bus, until `stopped` returns. Returns the summary, in which output
    /// that cannot be stored counts as dropped.
    pub(crate) async fn finish(mut self, cas: &Cas, stopped: impl Future<Output = ()>) -> LogSummary {
        if let Some(mut file) = self.overflow.take() {
            if let Err(error) = file.flush().await {
                warn!(%error, "cannot write the end of a log");
            }
            drop(file);
            let stored = tokio::select! {
                stored = self.store(cas) => stored,
                () = stopped => Err("the run was stopped".to_owned()),
            };
            match stored {
                Ok(blob) => {
                    let (path, digest) = (".forebay/log".to_owned(), Digest::from_sha256(blob.hash));
                    self.summary.overflow =
                        Some(OutputFile { path, digest, size_bytes: blob.size, executable: false });
                }
                Err(error) => {
                    warn!(error, bytes = self.overflow_bytes, "cannot store the rest of a log");
                    self.summary.dropped_bytes += self.overflow_bytes;
                }
            }
        }
        self.summary
    }

    /// Stores the file, waiting for a store that is full or does not answer; returns otherwise why it is not stored.
    async fn store(&self, cas: &Cas) -> Result<BlobDigest, String> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = "the store did not answer in time".to_owned();
        loop {
            let put = cas.put_file(DigestFunction::Sha256, &self.overflow_path, false);
            let error = match tokio::time::timeout_at(deadline, put).await {
                Ok(Ok(blob)) => return Ok(blob),
                Ok(Err(error)) => error,
                Err(_) => return Err(last),
            };
            last = telemetry::error_chain(&error);
            if error.is_about_content() || Instant::now() >= deadline {
                return Err(last);
            }
            warn!(error = last, "cannot store a log yet, retrying");
            tokio::time::sleep(RETRY).await;
        }
    }
}
