//! The index of a log: which piece has a line or a byte.

/// A part of a log, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece<P> {
    /// Where its content is read.
    pub place: P,
    /// Offset of its first byte in the log.
    pub first_byte: u64,
    pub bytes: u64,
    /// Number of line ends before it.
    pub first_line: u64,
    /// Number of line ends in it.
    pub lines: u64,
}

/// The pieces of a log, in order. Stdout and stderr in order of arrival make one log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogIndex<P> {
    pieces: Vec<Piece<P>>,
    bytes: u64,
    lines: u64,
}

impl<P> Default for LogIndex<P> {
    fn default() -> Self {
        Self { pieces: Vec::new(), bytes: 0, lines: 0 }
    }
}

impl<P> LogIndex<P> {
    /// Adds the next piece.
    pub fn push(&mut self, place: P, bytes: u64, lines: u64) {
        self.pieces.push(Piece { place, first_byte: self.bytes, bytes, first_line: self.lines, lines });
        self.count(bytes, lines);
    }

    /// Adds to the last piece if `grow` extends its place.
    ///
    /// Returns whether it did.
    pub fn grow_last(&mut self, bytes: u64, lines: u64, grow: impl FnOnce(&mut Piece<P>) -> bool) -> bool {
        let Some(last) = self.pieces.last_mut() else { return false };
        if !grow(last) {
            return false;
        }
        last.bytes = last.bytes.saturating_add(bytes);
        last.lines = last.lines.saturating_add(lines);
        self.count(bytes, lines);
        true
    }

    fn count(&mut self, bytes: u64, lines: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.lines = self.lines.saturating_add(lines);
    }

    pub fn pieces(&self) -> &[Piece<P>] {
        &self.pieces
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of line ends.
    pub fn line_ends(&self) -> u64 {
        self.lines
    }

    /// Number of the piece with this byte; none after the end.
    pub fn of_byte(&self, byte: u64) -> Option<usize> {
        let ends = |piece: &Piece<P>| piece.first_byte.saturating_add(piece.bytes) <= byte;
        let before = self.pieces.partition_point(ends);
        (before < self.pieces.len()).then_some(before)
    }

    /// Number of the piece in which line `line`, counted from 0, starts, or at whose end it starts.
    pub fn of_line(&self, line: u64) -> Option<usize> {
        let ends = |piece: &Piece<P>| piece.first_line.saturating_add(piece.lines) < line;
        let before = self.pieces.partition_point(ends);
        (before < self.pieces.len()).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::LogIndex;

    fn lines(data: &[u8]) -> u64 {
        data.iter().map(|byte| u64::from(*byte == b'\n')).sum()
    }

    fn index(pieces: &[Vec<u8>]) -> LogIndex<usize> {
        let mut index = LogIndex::default();
        for (number, piece) in pieces.iter().enumerate() {
            index.push(number, piece.len() as u64, lines(piece));
        }
        index
    }

    proptest! {
        #[test]
        fn a_byte_and_a_line_are_found(
            pieces in prop::collection::vec(prop::collection::vec(prop_oneof![Just(b'\n'), Just(0), Just(0xc3), Just(b'x')], 0..20), 0..20),
        ) {
            let (index, whole) = (index(&pieces), pieces.concat());
            for byte in 0..whole.len() as u64 {
                let piece = &index.pieces()[index.of_byte(byte).unwrap()];
                prop_assert!((piece.first_byte..piece.first_byte + piece.bytes).contains(&byte));
            }
            prop_assert_eq!(index.of_byte(whole.len() as u64), None);
            let ends = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
            for (number, (at, _)) in ends.enumerate() {
                let piece = &index.pieces()[index.of_line(number as u64 + 1).unwrap()];
                prop_assert!((piece.first_byte..piece.first_byte + piece.bytes).contains(&(at as u64)));
            }
            prop_assert_eq!(index.of_line(index.line_ends() + 1), None);
        }

        #[test]
        fn a_piece_that_grew_is_one_piece(
            parts in prop::collection::vec((prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'x')], 0..20), any::<bool>()), 0..20),
        ) {
            let (mut grown, mut pieces) = (LogIndex::default(), Vec::<Vec<u8>>::new());
            for (part, joins) in &parts {
                let grew = grown.grow_last(part.len() as u64, lines(part), |_| *joins);
                prop_assert_eq!(grew, *joins && !pieces.is_empty());
                if grew {
                    pieces.last_mut().unwrap().extend(part);
                } else {
                    grown.push(pieces.len(), part.len() as u64, lines(part));
                    pieces.push(part.clone());
                }
            }
            prop_assert_eq!(grown, index(&pieces));
        }
    }

    #[test]
    fn ten_million_empty_lines_and_a_gigabyte_without_one() {
        let mut index = LogIndex::default();
        for _ in 0..10 {
            index.push((), 1_000_000, 1_000_000);
        }
        for _ in 0..1_000 {
            index.push((), 1_000_000, 0);
        }
        index.push((), 10, 1);
        assert_eq!(index.of_line(9_999_999), Some(9));
        assert_eq!((index.of_line(10_000_000), index.of_line(10_000_001)), (Some(9), Some(1_010)));
        assert_eq!(index.of_byte(1_009_999_999), Some(1_009));
    }
}
