//! Reads blobs of the farm's store and verifies them, as `remote` does, but in futures that can move between threads.

use std::path::Path;

use futures::TryStreamExt as _;
use hashing::{CopyError, copy_stream};
use model::BlobDigest;
use remote::{Remote, RemoteError};
use tokio::io::AsyncWriteExt as _;

use crate::tree::FUNCTION;

/// The content of a blob, in memory.
pub(crate) async fn read(remote: &Remote, digest: &BlobDigest) -> Result<Vec<u8>, RemoteError> {
    let mut content = Vec::new();
    if digest.is_empty_blob() {
        return Ok(content);
    }
    let mut pieces = open(remote, digest).await?;
    while let Some(piece) = pieces.try_next().await? {
        content.extend_from_slice(&piece);
    }
    check(digest, FUNCTION.digest(&content)).map(|()| content)
}

/// Writes a blob to `path`.
pub(crate) async fn fetch(remote: &Remote, digest: &BlobDigest, path: &Path) -> Result<(), RemoteError> {
    let failed = |source| RemoteError::File { path: path.display().to_string(), source };
    let mut out = tokio::fs::File::create(path).await.map_err(failed)?;
    if digest.is_empty_blob() {
        return Ok(());
    }
    let pieces = open(remote, digest).await?;
    let found = copy_stream(pieces, &mut out, FUNCTION.hasher()).await.map_err(|error| match error {
        CopyError::Read(error) => error,
        CopyError::Write(source) => failed(source),
    })?;
    check(digest, found)
}

/// Writes at most the first `bytes` bytes of a blob to `path`, and returns their digest. If that is not the whole blob, its
/// own digest is not checked.
pub(crate) async fn fetch_start(
    remote: &Remote,
    digest: &BlobDigest,
    bytes: u64,
    path: &Path,
) -> Result<BlobDigest, RemoteError> {
    if digest.size <= bytes {
        return fetch(remote, digest, path).await.map(|()| *digest);
    }
    let failed = |source| RemoteError::File { path: path.display().to_string(), source };
    let mut out = tokio::fs::File::create(path).await.map_err(failed)?;
    let (mut left, mut pieces) = (bytes, open(remote, digest).await?);
    let mut hasher = FUNCTION.hasher();
    while left > 0 {
        let Some(mut piece) = pieces.try_next().await? else {
            let why = format!("its content ends {left} bytes early");
            return Err(RemoteError::Answer { what: format!("reading {digest}"), why });
        };
        piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        hasher.update(&piece);
        out.write_all(&piece).await.map_err(failed)?;
        left -= piece.len() as u64;
    }
    out.flush().await.map_err(failed)?;
    Ok(hasher.finish())
}

type Pieces = futures::stream::BoxStream<'static, Result<bytes::Bytes, RemoteError>>;

async fn open(remote: &Remote, digest: &BlobDigest) -> Result<Pieces, RemoteError> {
    remote.open(digest, 0).await?.ok_or(RemoteError::Missing { digest: *digest })
}

fn check(wanted: &BlobDigest, found: BlobDigest) -> Result<(), RemoteError> {
    if found == *wanted {
        return Ok(());
    }
    Err(RemoteError::Answer { what: format!("reading {wanted}"), why: format!("its content is {found}") })
}
