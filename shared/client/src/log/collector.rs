//! Collects lines from the pieces of a log.

use std::collections::VecDeque;

use console_log::Run;
use model::OutputStream;

use super::{LogGap, LogLine};

/// Maximum number of bytes of a line.
pub(super) const LINE_MAX: usize = 16 << 10;
/// Maximum number of bytes of all lines, which one line may exceed.
pub(super) const TEXT_MAX: usize = 4 << 20;

/// Lines are counted from 0 here.
#[derive(Debug)]
pub(super) struct Collector {
    /// The wanted lines: from the first one up to the end.
    first: u64,
    end: u64,
    /// Whether the last lines are kept if there is too much text, not the first ones.
    is_tail: bool,
    /// Number of the line that is being read.
    current: u64,
    open: OpenLine,
    lines: VecDeque<LogLine>,
    /// Number of bytes of `lines`.
    text: usize,
    missing: Vec<LogGap>,
    /// Whether no more is read, though the log goes on.
    stopped: bool,
}

#[derive(Debug, Default)]
struct OpenLine {
    /// The stream of its first byte.
    stream: Option<OutputStream>,
    text: Vec<u8>,
    cut: bool,
}

impl Collector {
    pub(super) fn new(first: u64, end: u64, is_tail: bool) -> Self {
        Self {
            first,
            end,
            is_tail,
            current: first,
            open: OpenLine::default(),
            lines: VecDeque::new(),
            text: 0,
            missing: Vec::new(),
            stopped: false,
        }
    }

    /// Begins with a piece in which or after which this line ends.
    pub(super) fn start_at(&mut self, line: u64) {
        self.current = line;
    }

    pub(super) fn is_done(&self) -> bool {
        self.stopped || self.current >= self.end || (!self.is_tail && self.text > TEXT_MAX)
    }

    /// Leaves out the open line and all that follow.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    pub(super) fn has_line(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Number of the first line that was not reached; none if the open line ends the log.
    pub(super) fn next_line(&self) -> Option<u64> {
        let reached = self.current >= self.first && self.open.stream.is_some();
        (!reached || self.is_done()).then_some(self.current)
    }

    /// Leaves out a piece without line ends if the open line needs no more text. Returns whether it does.
    pub(super) fn skip_full_line(&mut self) -> bool {
        let full = self.current >= self.first && self.open.text.len() >= LINE_MAX;
        self.open.cut |= full;
        full
    }

    /// Adds the content of a piece.
    pub(super) fn add(&mut self, data: &[u8], runs: &[Run]) {
        let mut rest = data;
        for run in runs {
            let Some((mut part, after)) = rest.split_at_checked(run.bytes) else { return };
            rest = after;
            while let Some(end) = part.iter().position(|byte| *byte == b'\n') {
                if self.is_done() {
                    return;
                }
                let (line, more) = part.split_at(end);
                self.extend(run.stream, line);
                self.open.stream.get_or_insert(run.stream);
                self.end_line();
                part = more.get(1..).unwrap_or_default();
            }
            if !part.is_empty() {
                self.extend(run.stream, part);
            }
        }
    }

    /// Notes a piece that cannot be read.
    pub(super) fn lose(&mut self, lines: u64, bytes: u64, reason: String) {
        let after = self.current.saturating_add(lines);
        if after >= self.first && self.current < self.end {
            self.missing.push(LogGap { line: self.current + 1, lines, bytes, reason });
        }
        self.open.cut = true;
        if lines > 0 {
            if self.open.stream.is_some() {
                self.end_line();
            }
            self.current = after;
            self.open = OpenLine { cut: true, ..OpenLine::default() };
        }
    }

    fn extend(&mut self, stream: OutputStream, data: &[u8]) {
        if self.current < self.first || self.is_done() || data.is_empty() {
            return;
        }
        self.open.stream.get_or_insert(stream);
        let room = LINE_MAX.saturating_sub(self.open.text.len());
        self.open.text.extend_from_slice(data.get(..room).unwrap_or(data));
        self.open.cut |= data.len() > room;
    }

    fn end_line(&mut self) {
        let open = std::mem::take(&mut self.open);
        if let Some(stream) = open.stream.filter(|_| (self.first..self.end).contains(&self.current)) {
            let line = LogLine { number: self.current + 1, stream, text: text(&open), cut: open.cut };
            self.text += line.text.len();
            self.lines.push_back(line);
            while self.is_tail && self.text > TEXT_MAX && self.lines.len() > 1 {
                let dropped = self.lines.pop_front();
                self.text -= dropped.map_or(0, |line| line.text.len());
            }
        }
        self.current = self.current.saturating_add(1);
    }

    /// The lines, with an open one at the end of the log, and the output that is missing.
    pub(super) fn finish(mut self) -> (Vec<LogLine>, Vec<LogGap>) {
        if self.open.stream.is_some() && !self.is_done() {
            self.end_line();
        }
        (self.lines.into(), self.missing)
    }
}

/// The text of a line; a character that the cut splits is left out.
fn text(line: &OpenLine) -> String {
    let mut text = line.text.as_slice();
    if line.cut
        && let Some(last) = text.utf8_chunks().last()
        && std::str::from_utf8(last.invalid()).is_err_and(|error| error.error_len().is_none())
    {
        text = text.get(..text.len() - last.invalid().len()).unwrap_or_default();
    }
    String::from_utf8_lossy(text).into_owned()
}
