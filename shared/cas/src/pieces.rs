//! Pieces of blobs: as a stream, and read from a file.

use std::{
    fs::File,
    io::{self, Read as _},
};

use bytes::Bytes;
use futures::stream::BoxStream;

use crate::CasError;

/// Maximum size in bytes of a piece.
pub(crate) const PIECE_BYTES: u32 = 512 << 10;

/// Pieces of a blob, in order, of at most 512 KiB each.
pub type BlobStream = BoxStream<'static, Result<Bytes, CasError>>;

/// Reads up to `length` bytes from the current position of the file.
pub(crate) fn read_some(file: &File, length: u64) -> io::Result<Vec<u8>> {
    let mut piece = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    file.take(length).read_to_end(&mut piece)?;
    Ok(piece)
}

/// Reads exactly `length` bytes from the current position of the file.
pub(crate) fn read_piece(file: &File, length: u64) -> io::Result<Vec<u8>> {
    let piece = read_some(file, length)?;
    let whole = piece.len() as u64 == length;
    whole.then_some(piece).ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
}
