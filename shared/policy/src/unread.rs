//! Decides what a reader of a stream has still to read.

use model::{Millis, Sequence};

/// A position in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPosition {
    /// Time at which the stream was created: a stream that was removed and created again has another one.
    pub created: Millis,
    pub position: Sequence,
}

/// The part of a stream that is still to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    Nothing,
    /// The messages after this position.
    After(Sequence),
    /// All messages: none was read before.
    All,
    /// All messages: the stream is not the one that was read, or it was restored to an earlier state.
    AllAgain,
}

/// What is unread of a stream that ends at `end` and was read up to `read`.
pub fn unread(read: Option<StreamPosition>, end: StreamPosition) -> Unread {
    match read {
        None if end.position == Sequence(0) => Unread::Nothing,
        None => Unread::All,
        Some(read) if read.created != end.created || read.position > end.position => Unread::AllAgain,
        Some(read) if read.position == end.position => Unread::Nothing,
        Some(read) => Unread::After(read.position),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_was_recreated_or_restored_is_read_again() {
        let at =
            |created, position| StreamPosition { created: Millis(created), position: Sequence(position) };
        assert_eq!(unread(None, at(1, 0)), Unread::Nothing);
        assert_eq!(unread(None, at(1, 5)), Unread::All);
        assert_eq!(unread(Some(at(1, 5)), at(1, 5)), Unread::Nothing);
        assert_eq!(unread(Some(at(1, 5)), at(1, 7)), Unread::After(Sequence(5)));
        for other in [at(1, 4), at(1, 0), at(2, 0), at(2, 5), at(2, 7)] {
            assert_eq!(unread(Some(at(1, 5)), other), Unread::AllAgain, "{other:?}");
        }
    }
}
