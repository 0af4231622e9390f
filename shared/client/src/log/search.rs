//! Finds lines of a log that contain a text. Large pieces are read in parallel.

use std::{sync::Arc, time::Duration};

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use console_log::Piece;
use futures::StreamExt as _;
use model::ErrorCode;
use tokio::time::Instant;

use super::{LogSource as _, OpenLog, PieceContent, PiecePlace, RunLog, StoredSource, collector::LINE_MAX};
use crate::{Blobs, Client, ClientError, Frame, FrameContent};

/// Number of pieces that are read at a time.
const AT_ONCE: usize = 4;
/// Time after which a search stops and says where to go on.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum length in bytes of the text to find: preparing the search takes time that grows with its square.
const NEEDLE_MAX: usize = 1000;
/// Maximum length in bytes of the text of a found line.
const TEXT_MAX: usize = 1024;

/// The lines of a log that contain a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLines {
    pub lines: Vec<FoundLine>,
    /// Number of the line with which to go on; none if the whole log was searched.
    pub next_line: Option<u64>,
    /// Number of bytes that could not be searched.
    pub lost_bytes: u64,
}

/// A line that contains a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLine {
    /// Number of the line, from 1.
    pub number: u64,
    /// The line, or the part of it around the text.
    pub text: String,
}

/// What one piece has.
#[derive(Debug, Default)]
struct Scanned {
    /// Bytes before the first line end, of a line that may have begun before the piece.
    head: Vec<u8>,
    /// Bytes after the last line end.
    tail: Vec<u8>,
    /// Whole lines with the text, by the number of line ends of the piece before them.
    lines: Vec<(u64, String)>,
    lost_bytes: u64,
}

impl OpenLog {
    /// Finds at most `limit` lines with a text, from line `from` on. Letters of ASCII match in both cases; a text longer
    /// than a line is not found, nor one in the part of a line beyond 16 KiB that two pieces share.
    ///
    /// # Errors
    ///
    /// Fails if the text is longer than 1,000 bytes, or if the bus does not answer.
    pub async fn find<B: Blobs + Clone>(
        &self,
        client: &Client,
        blobs: &B,
        text: &str,
        from: u64,
        limit: usize,
    ) -> Result<FoundLines, ClientError> {
        if text.len() > NEEDLE_MAX {
            let what = format!("the text to find is longer than {NEEDLE_MAX} bytes");
            return Err(ClientError::api(ErrorCode::InvalidRequest, what));
        }
        let mut found = Finding { lines: Vec::new(), lost_bytes: 0, open: Vec::new(), from };
        let Some((run, matcher)) = self.run().zip(matcher(text)) else { return Ok(found.end(None)) };
        let (began, first) = (Instant::now(), run.index.of_line(from.saturating_sub(1)).unwrap_or_default());
        let pieces = run.index.pieces().iter().skip(first);
        // Collected first: a closure in the stream would make the future of the caller depend on its lifetimes.
        let scans: Vec<_> = pieces.map(|piece| self.scan(client, blobs, run, piece, &matcher)).collect();
        let mut scanned = futures::stream::iter(scans).buffered(AT_ONCE);
        let mut line = 0;
        while let Some(next) = scanned.next().await {
            let (piece, scanned) = next?;
            line = found.add(piece, scanned, &matcher);
            if found.lines.len() >= limit || began.elapsed() > PATIENCE {
                found.lines.truncate(limit);
                let last =
                    found.lines.last().filter(|_| found.lines.len() == limit).map(|line| line.number + 1);
                return Ok(found.end(Some(last.unwrap_or(line + 1))));
            }
        }
        found.close(line, &matcher);
        Ok(found.end(None))
    }

    async fn scan<'a, B: Blobs + Clone>(
        &self,
        client: &Client,
        blobs: &B,
        run: &RunLog,
        piece: &'a Piece<PiecePlace>,
        matcher: &Arc<AhoCorasick>,
    ) -> Result<(&'a Piece<PiecePlace>, Scanned), ClientError> {
        let mut blobs = blobs.clone();
        let matcher = matcher.clone();
        let scanning = if let PiecePlace::Frame(reference) = &piece.place {
            let (blob, mut frame) = (blobs.read(&reference.blob).await, Frame::unread(*reference));
            tokio::task::spawn_blocking(move || {
                frame.fill(blob);
                match &frame.content {
                    FrameContent::Read(raw) => Some(scan(&raw.data, &matcher)),
                    FrameContent::Lost(_) | FrameContent::Unread => None,
                }
            })
        } else {
            let mut source = StoredSource { bus: client.bus(), key: &self.key, run, blobs: &mut blobs };
            let content = source.read(piece).await?;
            tokio::task::spawn_blocking(move || match content {
                PieceContent::Read { data, .. } => Some(scan(&data, &matcher)),
                PieceContent::Lost(_) => None,
            })
        };
        let lost = || Scanned { lost_bytes: piece.bytes, ..Scanned::default() };
        // A panic of the scan is reported by its own task.
        Ok((piece, scanning.await.ok().flatten().unwrap_or_else(lost)))
    }
}

/// None: there is nothing to find.
fn matcher(text: &str) -> Option<Arc<AhoCorasick>> {
    let text = text.trim_matches(['\r', '\n']);
    if text.is_empty() {
        return None;
    }
    // As fast for any text: the search for rare bytes that it would begin with is slow where they are not rare.
    let mut builder = AhoCorasick::builder();
    builder.ascii_case_insensitive(true).kind(Some(AhoCorasickKind::DFA)).prefilter(false);
    builder.build([text]).ok().map(Arc::new)
}

fn scan(data: &[u8], matcher: &AhoCorasick) -> Scanned {
    let Some(first_end) = memchr::memchr(b'\n', data) else {
        return Scanned { head: start(data), ..Scanned::default() };
    };
    let last_end = memchr::memrchr(b'\n', data).unwrap_or(first_end);
    let (head, whole) = data.split_at(first_end + 1);
    let whole = whole.get(..last_end - first_end).unwrap_or_default();
    let mut scanned = Scanned {
        head: start(head.get(..first_end).unwrap_or_default()),
        tail: start(data.get(last_end + 1..).unwrap_or_default()),
        ..Scanned::default()
    };
    let (mut at, mut number) = (0, 1);
    while let Some(found) = matcher.find(whole.get(at..).unwrap_or_default()) {
        let (begin, rest) = (at + found.start(), whole.get(at..).unwrap_or_default());
        number += memchr::memchr_iter(b'\n', rest.get(..found.start()).unwrap_or_default()).count() as u64;
        let line_start =
            memchr::memrchr(b'\n', whole.get(..begin).unwrap_or_default()).map_or(0, |end| end + 1);
        let line_end = memchr::memchr(b'\n', whole.get(begin..).unwrap_or_default())
            .map_or(whole.len(), |end| begin + end);
        let line = whole.get(line_start..line_end).unwrap_or_default();
        scanned.lines.push((number, around(line, begin - line_start)));
        (at, number) = (line_end + 1, number + 1);
        if at >= whole.len() {
            break;
        }
    }
    scanned
}

/// The part of a line that is searched.
fn start(line: &[u8]) -> Vec<u8> {
    line.get(..LINE_MAX).unwrap_or(line).to_vec()
}

/// The text of a line, or of the part around `at` of a long one.
fn around(line: &[u8], at: usize) -> String {
    let from = if line.len() <= TEXT_MAX { 0 } else { at.saturating_sub(TEXT_MAX / 4) };
    let end = line.len().min(from + TEXT_MAX);
    String::from_utf8_lossy(line.get(from..end).unwrap_or_default()).into_owned()
}

/// What was found so far.
struct Finding {
    lines: Vec<FoundLine>,
    lost_bytes: u64,
    /// The line that the next piece goes on with, as far as it is searched.
    open: Vec<u8>,
    /// Number of the first line that counts.
    from: u64,
}

impl Finding {
    /// Adds the next piece. Returns the number of line ends up to its end.
    fn add(&mut self, piece: &Piece<PiecePlace>, scanned: Scanned, matcher: &AhoCorasick) -> u64 {
        self.lost_bytes += scanned.lost_bytes;
        let room = LINE_MAX.saturating_sub(self.open.len());
        self.open.extend_from_slice(scanned.head.get(..room).unwrap_or(&scanned.head));
        if piece.lines > 0 {
            self.close(piece.first_line, matcher);
            for (number, text) in scanned.lines {
                self.push(piece.first_line + number, text);
            }
            self.open = scanned.tail;
        }
        piece.first_line + piece.lines
    }

    /// Ends the open line, which has `before` lines before it.
    fn close(&mut self, before: u64, matcher: &AhoCorasick) {
        let open = std::mem::take(&mut self.open);
        if let Some(found) = matcher.find(&open) {
            self.push(before, around(&open, found.start()));
        }
    }

    fn push(&mut self, before: u64, text: String) {
        if before + 1 >= self.from {
            self.lines.push(FoundLine { number: before + 1, text });
        }
    }

    fn end(self, next_line: Option<u64>) -> FoundLines {
        FoundLines { lines: self.lines, next_line, lost_bytes: self.lost_bytes }
    }
}

#[cfg(test)]
mod tests {
    use console_log::Piece;
    use proptest::prelude::*;

    use super::{Finding, matcher, scan};
    use crate::PiecePlace;

    proptest! {
        #[test]
        fn every_line_with_the_text_is_found_once(
            pieces in prop::collection::vec(
                prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'a'), Just(b'B'), Just(b'x')], 0..12), 0..8),
            from in 1..6_u64,
        ) {
            let matcher = matcher("ab").unwrap();
            let mut found = Finding { lines: Vec::new(), lost_bytes: 0, open: Vec::new(), from };
            let (mut first_line, mut first_byte) = (0, 0);
            for data in &pieces {
                let lines = memchr::memchr_iter(b'\n', data).count() as u64;
                let bytes = data.len() as u64;
                let piece = Piece { place: PiecePlace::Nowhere("here"), first_byte, bytes, first_line, lines };
                first_line = found.add(&piece, scan(data, &matcher), &matcher);
                first_byte += bytes;
            }
            found.close(first_line, &matcher);
            let whole = String::from_utf8(pieces.concat()).unwrap();
            let wanted: Vec<(u64, &str)> = (1..).zip(whole.split('\n'))
                .filter(|(number, line)| *number >= from && line.to_lowercase().contains("ab")).collect();
            let lines: Vec<(u64, &str)> = found.lines.iter().map(|line| (line.number, line.text.as_str())).collect();
            prop_assert_eq!(lines, wanted);
        }
    }

    #[test]
    fn nothing_is_found_for_no_text() {
        assert!(matcher("").is_none() && matcher("\n").is_none());
    }
}
