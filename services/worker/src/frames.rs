//! Frames of console output on their way into the store, in order.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use cas::Cas;
use console_log::Raw;
use model::{BlobDigest, DigestFunction, OutputStream};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

/// Time limit for storing a frame.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause before another attempt to store a frame.
const RETRY: Duration = Duration::from_secs(1);
/// Number of frames that are being stored from which on output waits.
const AT_ONCE: usize = 4;
/// Maximum number of frames that are being stored: output of a run that must end does not wait.
const MOST: usize = 16;

/// A frame, without its content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) lines: u64,
    pub(crate) stdout: Part,
    pub(crate) stderr: Part,
}

/// Consecutive output of one stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Offset in the output of the stream, in bytes.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Extent {
    fn of(raw: &Raw) -> Self {
        let of_stream = |stream: OutputStream| {
            raw.runs.iter().filter(|run| run.stream == stream).map(|run| run.bytes as u64).sum()
        };
        Self {
            offset: raw.offset(),
            bytes: raw.data.len() as u64,
            lines: raw.lines(),
            stdout: Part { offset: raw.stdout_offset, bytes: of_stream(OutputStream::Stdout) },
            stderr: Part { offset: raw.stderr_offset, bytes: of_stream(OutputStream::Stderr) },
        }
    }

    /// Extends it by the one that follows.
    fn join(&mut self, next: &Self) {
        self.bytes += next.bytes;
        self.lines += next.lines;
        self.stdout.bytes += next.stdout.bytes;
        self.stderr.bytes += next.stderr.bytes;
    }
}

/// What became of a part of the output.
#[derive(Debug)]
pub(crate) enum Ready {
    Stored(Extent, BlobDigest),
    /// It is lost, for this reason.
    Lost(Extent, String),
    /// No output follows. The limit was exceeded at this offset of a stream.
    End(OutputStream, u64),
}

/// A part of the output, in order.
enum Entry {
    Storing {
        extent: Extent,
        stored: oneshot::Receiver<Result<BlobDigest, String>>,
        _task: AbortOnDropHandle<()>,
    },
    Lost(Extent),
    End(OutputStream, u64),
}

/// The frames that are being stored. Dropping it ends that.
pub(crate) struct Frames {
    cas: Cas,
    queue: VecDeque<Entry>,
    /// Number of frames that are being stored.
    storing: usize,
    /// Whether the store did not take the last frame in time: further output does not wait for it.
    is_away: bool,
    /// Changes when a frame was stored or lost.
    changed: watch::Sender<()>,
}

impl Frames {
    pub(crate) fn new(cas: Cas) -> Self {
        Self { cas, queue: VecDeque::new(), storing: 0, is_away: false, changed: watch::Sender::new(()) }
    }

    /// Notified when [`Self::next`] may return something.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether output need not wait before the next frame is started.
    pub(crate) fn has_room(&self) -> bool {
        self.is_away || self.storing < AT_ONCE
    }

    /// Starts to compress and store a frame. It is lost if too many are being stored.
    pub(crate) fn start(&mut self, raw: Raw) {
        let extent = Extent::of(&raw);
        if self.storing >= if self.is_away { AT_ONCE } else { MOST } {
            if let Some(Entry::Lost(last)) = self.queue.back_mut() {
                last.join(&extent);
            } else {
                self.queue.push_back(Entry::Lost(extent));
            }
            return;
        }
        self.storing += 1;
        let (sender, stored) = oneshot::channel();
        let (cas, changed) = (self.cas.clone(), self.changed.clone());
        let task = tokio::spawn(async move {
            // A closed channel means that the run has ended.
            let _ = sender.send(store(cas, raw).await);
            changed.send_replace(());
        });
        self.queue.push_back(Entry::Storing { extent, stored, _task: AbortOnDropHandle::new(task) });
    }

    /// Notes that no output follows.
    pub(crate) fn end(&mut self, stream: OutputStream, offset: u64) {
        self.queue.push_back(Entry::End(stream, offset));
    }

    /// What became of the oldest part, if that is known.
    pub(crate) fn next(&mut self) -> Option<Ready> {
        if let Some(Entry::Storing { extent, stored, .. }) = self.queue.front_mut() {
            let (extent, stored) = match stored.try_recv() {
                Ok(stored) => (*extent, stored),
                Err(oneshot::error::TryRecvError::Empty) => return None,
                Err(oneshot::error::TryRecvError::Closed) => (*extent, Err("the task ended".to_owned())),
            };
            self.queue.pop_front();
            self.storing -= 1;
            self.is_away = stored.is_err();
            return Some(match stored {
                Ok(blob) => Ready::Stored(extent, blob),
                Err(why) => Ready::Lost(extent, why),
            });
        }
        Some(match self.queue.pop_front()? {
            Entry::Lost(extent) => Ready::Lost(extent, "the store does not answer".to_owned()),
            Entry::End(stream, offset) => Ready::End(stream, offset),
            Entry::Storing { .. } => return None,
        })
    }
}

/// Stores a frame, waiting for a store that is full or does not answer.
async fn store(cas: Cas, raw: Raw) -> Result<BlobDigest, String> {
    let packed = tokio::task::spawn_blocking(move || console_log::pack(&raw)).await;
    let blob: Bytes = match packed {
        Ok(Ok(blob)) => blob,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(error) => return Err(error.to_string()),
    };
    let deadline = Instant::now() + PATIENCE;
    let mut last = "the store did not answer in time".to_owned();
    loop {
        let put = cas.put_bytes(DigestFunction::Sha256, blob.clone());
        let error = match tokio::time::timeout_at(deadline, put).await {
            Ok(Ok(digest)) => return Ok(digest),
            Ok(Err(error)) => error,
            Err(_) => return Err(last),
        };
        last = telemetry::error_chain(&error);
        if error.is_about_content() || error.is_zone_limit() || Instant::now() >= deadline {
            return Err(last);
        }
        warn!(error = last, "cannot store a part of a log yet, retrying");
        tokio::time::sleep(RETRY).await;
    }
}
