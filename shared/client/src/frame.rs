//! Frames of console output, as delivered to watchers.

use bus::ConsoleFrame;
use bytes::Bytes;
use console_log::{Raw, unpack};
use model::{BlobDigest, OutputStream};

/// Reads blobs of frames.
pub trait Blobs {
    /// Reads a blob, or says why it cannot be read.
    fn read(&mut self, blob: &BlobDigest) -> impl Future<Output = Result<Bytes, String>>;
}

/// Console output that is in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What the event says about it.
    pub reference: ConsoleFrame,
    /// The only output stream whose parts are wanted; none: both.
    pub only: Option<OutputStream>,
    pub content: FrameContent,
}

/// The output of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameContent {
    /// It was not read from the store.
    Unread,
    Read(Raw),
    /// It cannot be read, for this reason.
    Lost(String),
}

/// Consecutive output of one stream in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramePart<'a> {
    pub stream: OutputStream,
    /// Offset in that stream, in bytes.
    pub offset: u64,
    pub data: &'a [u8],
}

impl Frame {
    pub(crate) fn unread(reference: ConsoleFrame) -> Self {
        Self { reference, only: None, content: FrameContent::Unread }
    }

    /// Reads and decodes the blob, or notes why it cannot be read.
    pub async fn read(&mut self, blobs: &mut impl Blobs) {
        let blob = match self.blob() {
            Ok(blob) => blobs.read(&blob).await,
            Err(error) => Err(error),
        };
        self.fill(blob);
    }

    fn blob(&self) -> Result<BlobDigest, String> {
        let blob = self.reference.blob;
        let fits = blob.size <= console_log::BLOB_MAX;
        if fits { Ok(blob) } else { Err(format!("blob {blob} is larger than a frame can be")) }
    }

    pub(crate) fn fill(&mut self, blob: Result<Bytes, String>) {
        self.content = match blob.map(|blob| unpack(&blob)) {
            Ok(Ok(raw)) if self.is_described_by(&raw) => FrameContent::Read(raw),
            Ok(Ok(_)) => FrameContent::Lost("the blob is not this part of the output".to_owned()),
            Ok(Err(error)) => FrameContent::Lost(error.to_string()),
            Err(error) => FrameContent::Lost(error),
        };
    }

    fn is_described_by(&self, raw: &Raw) -> bool {
        let reference = &self.reference;
        (raw.data.len() as u64, raw.offset(), raw.lines())
            == (reference.bytes, reference.offset, reference.lines)
    }

    /// The wanted output by stream, in order of arrival; empty if it was not read.
    pub fn parts(&self) -> Vec<FramePart<'_>> {
        let FrameContent::Read(raw) = &self.content else { return Vec::new() };
        let (mut stdout, mut stderr) = (raw.stdout_offset, raw.stderr_offset);
        let mut rest = raw.data.as_slice();
        let mut parts = Vec::with_capacity(raw.runs.len());
        for run in &raw.runs {
            let Some((data, after)) = rest.split_at_checked(run.bytes) else { break };
            rest = after;
            let seen = match run.stream {
                OutputStream::Stdout => &mut stdout,
                OutputStream::Stderr => &mut stderr,
            };
            if self.only.is_none_or(|only| only == run.stream) {
                parts.push(FramePart { stream: run.stream, offset: *seen, data });
            }
            *seen = seen.saturating_add(run.bytes as u64);
        }
        parts
    }

    /// Whether it was read, and has no output of the wanted stream.
    pub fn is_empty(&self) -> bool {
        matches!(self.content, FrameContent::Read(_)) && self.parts().is_empty()
    }

    /// A line that says what is missing; none if the output was read.
    pub fn lost_line(&self) -> Option<String> {
        let bytes = self.reference.bytes;
        match &self.content {
            FrameContent::Read(_) => None,
            FrameContent::Unread => {
                Some(format!("{bytes} bytes of output are in blob {}", self.reference.blob))
            }
            FrameContent::Lost(why) => Some(format!("{bytes} bytes of output cannot be read: {why}")),
        }
    }
}
