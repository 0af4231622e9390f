use bytes::Bytes;
use console_log::{LogIndex, Piece, Run};
use futures::executor::block_on;
use model::OutputStream::{self, Stderr, Stdout};
use proptest::prelude::*;

use super::{LogLines, LogSource, PieceContent, read_lines};
use crate::{
    ClientError, LogRange,
    log::collector::{LINE_MAX, TEXT_MAX},
};

/// Pieces in memory; none: the piece is lost.
struct Memory {
    pieces: Vec<Option<(OutputStream, Vec<u8>)>>,
    reads: Vec<usize>,
}

impl LogSource for Memory {
    type Place = usize;

    async fn read(&mut self, piece: &Piece<usize>) -> Result<PieceContent, ClientError> {
        self.reads.push(piece.place);
        Ok(match &self.pieces[piece.place] {
            Some((stream, data)) => {
                let runs = vec![Run { stream: *stream, bytes: data.len() }];
                PieceContent::Read { data: Bytes::from(data.clone()), runs }
            }
            None => PieceContent::Lost("gone".to_owned()),
        })
    }
}

fn log(pieces: &[(OutputStream, Vec<u8>)]) -> (Memory, LogIndex<usize>) {
    let mut index = LogIndex::default();
    for (number, (_, data)) in pieces.iter().enumerate() {
        let lines = data.iter().map(|byte| u64::from(*byte == b'\n')).sum();
        index.push(number, data.len() as u64, lines);
    }
    (Memory { pieces: pieces.iter().cloned().map(Some).collect(), reads: Vec::new() }, index)
}

fn read(source: &mut Memory, index: &LogIndex<usize>, range: LogRange) -> LogLines {
    source.reads.clear();
    block_on(read_lines(source, index, range)).unwrap()
}

fn texts(found: &LogLines) -> Vec<(u64, &str)> {
    found.lines.iter().map(|line| (line.number, line.text.as_str())).collect()
}

/// The lines of a whole log, with their streams.
fn lines_of(pieces: &[(OutputStream, Vec<u8>)]) -> Vec<(OutputStream, Vec<u8>)> {
    let bytes = pieces.iter().flat_map(|(stream, data)| data.iter().map(|byte| (*stream, *byte)));
    let (mut lines, mut open) = (Vec::new(), None::<(OutputStream, Vec<u8>)>);
    for (stream, byte) in bytes {
        let line = open.get_or_insert((stream, Vec::new()));
        if byte == b'\n' {
            lines.extend(open.take());
        } else {
            line.1.push(byte);
        }
    }
    lines.extend(open);
    lines
}

fn pieces() -> impl Strategy<Value = Vec<(OutputStream, Vec<u8>)>> {
    let byte = prop_oneof![3 => Just(b'x'), 2 => Just(b'\n'), 1 => any::<u8>()];
    let stream = prop_oneof![Just(Stdout), Just(Stderr)];
    prop::collection::vec((stream, prop::collection::vec(byte, 0..12)), 0..12)
}

proptest! {
    #[test]
    fn any_window_has_the_lines_of_the_log(pieces in pieces(), line in 0..40_usize, count in 0..40_usize, tail in any::<bool>()) {
        let (mut source, index) = log(&pieces);
        let all = lines_of(&pieces);
        let lines = count as u64;
        let range = if tail { LogRange::Tail { lines } } else { LogRange::From { line: line as u64, lines } };
        let found = read(&mut source, &index, range);
        let first = if tail { all.len().saturating_sub(count) } else { line.max(1) - 1 };
        let wanted: Vec<_> = all.iter().enumerate().skip(first).take(count).collect();
        prop_assert_eq!(found.total, all.len() as u64);
        prop_assert_eq!(found.lines.len(), wanted.len());
        for (line, (number, (stream, text))) in found.lines.iter().zip(&wanted) {
            prop_assert_eq!((line.number, line.stream, line.cut), (*number as u64 + 1, *stream, false));
            prop_assert_eq!(&line.text, &String::from_utf8_lossy(text));
        }
        let after = first + count;
        let next = (!tail && after < all.len()).then_some(after as u64 + 1);
        prop_assert_eq!(found.next_line, next);
        prop_assert!(found.missing.is_empty());
    }

    #[test]
    fn pages_join_to_the_log(pieces in pieces(), count in 1..7_u64) {
        let (mut source, index) = log(&pieces);
        let (mut next, mut lines) = (Some(1), Vec::new());
        while let Some(line) = next {
            let found = read(&mut source, &index, LogRange::From { line, lines: count });
            lines.extend(found.lines);
            next = found.next_line;
        }
        let numbers: Vec<u64> = lines.iter().map(|line| line.number).collect();
        prop_assert_eq!(numbers, (1..=lines_of(&pieces).len() as u64).collect::<Vec<_>>());
    }

    #[test]
    fn lost_pieces_change_no_number(pieces in pieces(), lost in any::<u16>(), line in 1..20_u64) {
        let (mut source, index) = log(&pieces);
        let whole = read(&mut source, &index, LogRange::From { line: 1, lines: 100 });
        for (number, piece) in source.pieces.iter_mut().enumerate() {
            if lost >> number & 1 == 1 {
                *piece = None;
            }
        }
        let found = read(&mut source, &index, LogRange::From { line, lines: 5 });
        for line in &found.lines {
            let was = whole.lines.iter().find(|was| was.number == line.number);
            prop_assert!(line.cut || was == Some(line), "{:?} was {:?}", line, was);
        }
        prop_assert!(found.missing.iter().all(|gap| gap.reason == "gone"));
    }
}

#[test]
fn long_lines_are_cut_and_their_middle_is_not_read() {
    let mut pieces = vec![(Stdout, b"a\n".to_vec())];
    pieces.extend((0..1000).map(|_| (Stderr, "ä".repeat(10_000).into_bytes())));
    pieces.push((Stdout, b"end\nlast".to_vec()));
    let (mut source, index) = log(&pieces);
    let found = read(&mut source, &index, LogRange::From { line: 1, lines: 10 });
    assert_eq!((found.lines[1].cut, found.lines[1].stream), (true, Stderr));
    assert_eq!(found.lines[1].text, "ä".repeat(LINE_MAX / 2));
    assert_eq!(texts(&found)[2], (3, "last"));
    assert!(source.reads.len() < 6, "{:?}", source.reads);
}

#[test]
fn a_window_is_bounded_and_can_be_continued() {
    let piece = [vec![b'x'; 1 << 19], vec![b'\n'], vec![b'x'; 1 << 19]].concat();
    let pieces: Vec<_> = (0..100).map(|_| (Stdout, piece.clone())).collect();
    let (mut source, index) = log(&pieces);
    let found = read(&mut source, &index, LogRange::From { line: 3, lines: 2000 });
    let read_pieces = source.reads.len();
    assert!(read_pieces < 70 && found.lines.len() > 60, "{read_pieces} pieces, {} lines", found.lines.len());
    assert_eq!(found.next_line, Some(found.lines.last().unwrap().number + 1));
    assert!(found.lines.iter().all(|line| line.text.len() == LINE_MAX));
    let tail = read(&mut source, &index, LogRange::Tail { lines: 2000 });
    assert!(source.reads.len() < 70 && tail.lines.last().unwrap().number == 101, "{}", source.reads.len());
    let text: usize = tail.lines.iter().map(|line| line.text.len()).sum();
    assert!(tail.lines.len() > 60 && text <= TEXT_MAX);
}

#[test]
fn a_window_has_a_limit_of_text() {
    let pieces: Vec<_> = (0..2000).map(|_| (Stdout, [vec![b'x'; 15_000], vec![b'\n']].concat())).collect();
    let (mut source, index) = log(&pieces);
    for range in [LogRange::From { line: 1, lines: 2000 }, LogRange::Tail { lines: 2000 }] {
        let found = read(&mut source, &index, range);
        let text: usize = found.lines.iter().map(|line| line.text.len()).sum();
        assert!(text > TEXT_MAX / 2 && text < TEXT_MAX + LINE_MAX, "{text}");
    }
}

#[test]
fn lost_output_is_named_with_its_size() {
    let pieces = [(Stdout, b"1\n2\n3".to_vec()), (Stdout, b"3\n4\n5".to_vec()), (Stderr, b"5\n6\n".to_vec())];
    let (mut source, index) = log(&pieces);
    source.pieces[1] = None;
    let found = read(&mut source, &index, LogRange::From { line: 1, lines: 10 });
    assert_eq!(texts(&found), [(1, "1"), (2, "2"), (3, "3"), (5, "5"), (6, "6")]);
    assert_eq!(
        found.lines.iter().map(|line| line.cut).collect::<Vec<_>>(),
        [false, false, true, true, false]
    );
    let gap = &found.missing[0];
    assert_eq!((gap.line, gap.lines, gap.bytes, found.total), (3, 2, 5, 6));
}
