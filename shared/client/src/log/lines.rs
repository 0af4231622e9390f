//! Reads lines of a log by its index.

use bytes::Bytes;
use console_log::{LogIndex, Piece, Run};

use super::{LogGap, LogLine, LogRange, collector::Collector};
use crate::ClientError;

/// Maximum number of bytes of pieces that are read for a window, once it has a line.
const READ_MAX: u64 = 64 << 20;

/// Where the pieces of a log are read.
pub trait LogSource {
    /// Says where a piece is.
    type Place;

    /// Reads the content of a piece.
    fn read(&mut self, piece: &Piece<Self::Place>)
    -> impl Future<Output = Result<PieceContent, ClientError>>;
}

/// The content of a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PieceContent {
    /// Has as many bytes and line ends as the index says.
    Read { data: Bytes, runs: Vec<Run> },
    /// It cannot be read, for this reason.
    Lost(String),
}

/// Lines of a log, and the output that is missing between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLines {
    pub lines: Vec<LogLine>,
    pub missing: Vec<LogGap>,
    /// Number of the line that follows; none after the last one.
    pub next_line: Option<u64>,
    /// Number of lines of the log.
    pub total: u64,
}

/// Reads lines of a log, and of its pieces only those that the lines need.
///
/// # Errors
///
/// Fails if the source fails. A piece that is lost is no failure.
pub async fn read_lines<S: LogSource>(
    source: &mut S,
    index: &LogIndex<S::Place>,
    range: LogRange,
) -> Result<LogLines, ClientError> {
    let mut reader = Reader { source, index, last: None };
    let total = index.line_ends().saturating_add(u64::from(reader.has_open_line().await?));
    let (first, end, is_tail) = match range {
        LogRange::From { line, lines } => {
            let first = line.saturating_sub(1);
            (first, first.saturating_add(lines).min(total), false)
        }
        LogRange::Tail { lines } => (first_of_tail(index, total, lines), total, true),
    };
    let mut collector = Collector::new(first, end, is_tail);
    let start = if first < end { index.of_line(first) } else { None };
    if let Some(start) = start {
        reader.collect(start, &mut collector).await?;
    }
    let next = collector.next_line().filter(|next| *next < total).map(|next| next + 1);
    let (lines, missing) = collector.finish();
    Ok(LogLines { lines, missing, next_line: next, total })
}

/// The first line of a tail whose pieces are not larger than a window may read.
fn first_of_tail<P>(index: &LogIndex<P>, total: u64, lines: u64) -> u64 {
    let wanted = total.saturating_sub(lines);
    let from = index.bytes().saturating_sub(READ_MAX);
    let readable = index.of_byte(from).and_then(|piece| index.pieces().get(piece));
    let readable = readable.map_or(0, |piece| if from == 0 { 0 } else { piece.first_line + 1 });
    wanted.max(readable.min(total.saturating_sub(1)))
}

struct Reader<'a, S: LogSource> {
    source: &'a mut S,
    index: &'a LogIndex<S::Place>,
    /// The piece that was read last, by its number.
    last: Option<(usize, PieceContent)>,
}

impl<S: LogSource> Reader<'_, S> {
    /// Whether the log has text after its last line end.
    async fn has_open_line(&mut self) -> Result<bool, ClientError> {
        let Some(last) = self.index.pieces().iter().rposition(|piece| piece.bytes > 0) else {
            return Ok(false);
        };
        Ok(match self.read(last).await? {
            Some(PieceContent::Read { data, .. }) => data.last().is_some_and(|byte| *byte != b'\n'),
            Some(PieceContent::Lost(_)) | None => false,
        })
    }

    async fn read(&mut self, number: usize) -> Result<Option<PieceContent>, ClientError> {
        if let Some((known, content)) = &self.last
            && *known == number
        {
            return Ok(Some(content.clone()));
        }
        let Some(piece) = self.index.pieces().get(number) else { return Ok(None) };
        let content = self.source.read(piece).await?;
        self.last = Some((number, content.clone()));
        Ok(Some(content))
    }

    /// Reads pieces from number `start` on until the collector has its lines.
    async fn collect(&mut self, start: usize, collector: &mut Collector) -> Result<(), ClientError> {
        let index = self.index;
        let mut read = 0_u64;
        for (number, piece) in index.pieces().iter().enumerate().skip(start) {
            if number == start {
                collector.start_at(piece.first_line);
            }
            if read > READ_MAX && collector.has_line() {
                collector.stop();
            }
            if collector.is_done() {
                break;
            }
            if piece.lines == 0 && piece.bytes > 0 && collector.skip_full_line() {
                continue;
            }
            read = read.saturating_add(piece.bytes);
            match self.read(number).await? {
                Some(PieceContent::Read { data, runs }) => collector.add(&data, &runs),
                Some(PieceContent::Lost(reason)) => collector.lose(piece.lines, piece.bytes, reason),
                None => break,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
