//! Cutting console output into frames.

use model::OutputStream;

/// Maximum number of bytes of output in a frame.
pub const FRAME_MAX: usize = 1 << 20;
/// A frame ends after the last line end in this many of its last bytes, if there is one.
const LINE_END_WITHIN: usize = 64 << 10;
/// Maximum number of runs in a frame.
pub(crate) const RUNS_MAX: usize = 1 << 16;

/// Consecutive bytes of one output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub stream: OutputStream,
    pub bytes: usize,
}

/// The content of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Raw {
    /// Output of both streams in order of arrival.
    pub data: Vec<u8>,
    /// The streams that it belongs to.
    pub runs: Vec<Run>,
    /// Offset of the first byte of stdout in stdout.
    pub stdout_offset: u64,
    /// Offset of the first byte of stderr in stderr.
    pub stderr_offset: u64,
}

impl Raw {
    /// Offset of the frame in the whole console output.
    pub fn offset(&self) -> u64 {
        self.stdout_offset.saturating_add(self.stderr_offset)
    }

    /// Number of line ends.
    pub fn lines(&self) -> u64 {
        self.data.iter().map(|byte| u64::from(*byte == b'\n')).sum()
    }

    fn add(&mut self, run: Run) {
        match self.runs.last_mut() {
            Some(last) if last.stream == run.stream => last.bytes += run.bytes,
            Some(_) | None if run.bytes > 0 => self.runs.push(run),
            Some(_) | None => {}
        }
    }

    /// Splits off the first `cut` bytes.
    fn split(&mut self, cut: usize) -> Self {
        let tail = self.data.split_off(cut.min(self.data.len()));
        let mut head = Self { data: std::mem::replace(&mut self.data, tail), ..Self::default() };
        (head.stdout_offset, head.stderr_offset) = (self.stdout_offset, self.stderr_offset);
        let mut left = head.data.len();
        for run in std::mem::take(&mut self.runs) {
            let taken = run.bytes.min(left);
            left -= taken;
            match run.stream {
                OutputStream::Stdout => self.stdout_offset += taken as u64,
                OutputStream::Stderr => self.stderr_offset += taken as u64,
            }
            head.add(Run { bytes: taken, ..run });
            self.add(Run { bytes: run.bytes - taken, ..run });
        }
        head
    }
}

/// Collects console output and cuts it into frames.
#[derive(Debug, Default)]
pub struct Packer {
    open: Raw,
}

impl Packer {
    /// Creates a packer for the output after the first bytes of each stream.
    pub fn after(stdout: u64, stderr: u64) -> Self {
        Self { open: Raw { stdout_offset: stdout, stderr_offset: stderr, ..Raw::default() } }
    }

    /// Whether no output waits for a frame.
    pub fn is_empty(&self) -> bool {
        self.open.data.is_empty()
    }

    /// Adds output to the frame that is filled.
    pub fn push(&mut self, stream: OutputStream, data: &[u8]) {
        self.open.data.extend_from_slice(data);
        self.open.add(Run { stream, bytes: data.len() });
    }

    /// Takes the next frame if there is enough output for one.
    pub fn full(&mut self) -> Option<Raw> {
        if self.open.data.len() >= FRAME_MAX {
            let from = FRAME_MAX - LINE_END_WITHIN;
            let tail = self.open.data.get(from..FRAME_MAX).unwrap_or_default();
            let cut = tail.iter().rposition(|byte| *byte == b'\n').map_or(FRAME_MAX, |at| from + at + 1);
            return Some(self.open.split(cut));
        }
        (self.open.runs.len() >= RUNS_MAX).then(|| self.open.split(FRAME_MAX))
    }

    /// Takes all output that waits, less than a frame's maximum once [`Self::full`] has nothing more.
    pub fn rest(&mut self) -> Option<Raw> {
        (!self.is_empty()).then(|| self.open.split(FRAME_MAX))
    }
}
