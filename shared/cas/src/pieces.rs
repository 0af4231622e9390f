//! Pieces of blobs: as a stream, and read from a file.

use std::{
    fs::File,
    io::{self, Read as _},
};

use bytes::Bytes;
use futures::stream::BoxStream;

use crate::CasError;

/// Pieces of a blob, in order, of at most 512 KiB each.
pub type BlobStream = BoxStream<'static, Result<Bytes, CasError>>;

/// Reads up to `length` bytes from the current position of the file.
pub(crate) fn read_some(file: &File, length: u64) -> io::Result<Vec<u8>> {
    let mut piece = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    file.take(length).read_to_end(&mut piece)?;
    Ok(piece)
}
