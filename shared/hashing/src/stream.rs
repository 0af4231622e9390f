//! Reads and copies that do not block a thread of the runtime.

use std::{io, path::Path};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use invariant::Present as _;
use model::{BlobDigest, DigestFunction};
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::{content_hasher::ContentHasher, copy_error::CopyError};

/// Size of the buffer in bytes. Larger than for blocking reads: each read is a task of its own.
const BUFFER: usize = 1 << 20;

/// Computes the digest of the file at `path`.
pub async fn hash_file_async(path: &Path, function: DigestFunction) -> io::Result<BlobDigest> {
    let mut file = tokio::fs::File::open(path).await?;
    let mut hasher = function.hasher();
    let mut buffer = vec![0_u8; BUFFER];
    loop {
        let count = file.read(&mut buffer).await?;
        if count == 0 {
            return Ok(hasher.finish());
        }
        hasher.update(buffer.get(..count).present("the bytes of a buffer that were read"));
    }
}

/// Writes the pieces of a content to `out`, flushes it, and returns the result of `hasher`.
pub async fn copy_stream<E, H: ContentHasher>(
    mut pieces: impl Stream<Item = Result<Bytes, E>> + Unpin,
    out: &mut (impl AsyncWrite + Unpin),
    mut hasher: H,
) -> Result<H::Output, CopyError<E>> {
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(CopyError::Read)?;
        hasher.update(&piece);
        out.write_all(&piece).await.map_err(CopyError::Write)?;
    }
    out.flush().await.map_err(CopyError::Write)?;
    Ok(hasher.finish())
}
