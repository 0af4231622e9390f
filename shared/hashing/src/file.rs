//! Blocking reads of files and other readers.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use invariant::Present as _;
use model::{BlobDigest, DigestFunction};

use crate::copy_error::CopyError;

/// Size of the buffer in bytes.
const BUFFER: usize = 256 << 10;

/// Computes the digest of the file at `path`. This function blocks.
pub fn hash_file(path: &Path, function: DigestFunction) -> io::Result<BlobDigest> {
    hash_reader(File::open(path)?, function)
}

/// Computes the digest of everything that is left to read. This function blocks.
pub fn hash_reader(reader: impl Read, function: DigestFunction) -> io::Result<BlobDigest> {
    copy_reader(reader, io::sink(), function).map_err(|error| match error {
        CopyError::Read(error) | CopyError::Write(error) => error,
    })
}

/// Copies everything that is left to read, and returns its digest. This function blocks.
pub fn copy_reader(
    mut reader: impl Read,
    mut writer: impl Write,
    function: DigestFunction,
) -> Result<BlobDigest, CopyError<io::Error>> {
    let mut hasher = function.hasher();
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = match reader.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CopyError::Read(error)),
        };
        let piece = buffer.get(..count).present("the bytes of a buffer that were read");
        if piece.is_empty() {
            writer.flush().map_err(CopyError::Write)?;
            return Ok(hasher.finish());
        }
        hasher.update(piece);
        writer.write_all(piece).map_err(CopyError::Write)?;
    }
}
