//! Errors of copies, by the side that failed.

use std::io;

/// Why content could not be copied.
#[derive(Debug)]
pub enum CopyError<E> {
    /// Error of the content's source.
    Read(E),
    /// Error of the copy's destination.
    Write(io::Error),
}
