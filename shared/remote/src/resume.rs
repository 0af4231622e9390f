//! Continues downloads after a lost connection.

use bytes::Bytes;
use futures::{TryStreamExt as _, stream::BoxStream};
use model::BlobDigest;
use tokio::time::Instant;

use crate::{Remote, RemoteError};

/// The connection of one download.
pub(crate) struct Connection {
    remote: Remote,
    /// Time of the first failure since the last piece with content.
    lost_at: Option<Instant>,
}

impl Connection {
    pub(crate) fn new(remote: &Remote) -> Self {
        Self { remote: remote.clone(), lost_at: None }
    }

    pub(crate) fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Connects again after `error`; fails if that cannot help, or if no server answers in the time to wait.
    pub(crate) async fn again(&mut self, error: RemoteError, what: String) -> Result<(), RemoteError> {
        if !error.is_unreachable() {
            return Err(error);
        }
        let Some(resume) = self.remote.resume.clone() else { return Err(error) };
        let lost_at = *self.lost_at.get_or_insert_with(Instant::now);
        let Some(other) = resume.reconnect(lost_at).await else {
            return Err(RemoteError::Lost { what, source: Box::new(error) });
        };
        self.remote.channel = other.channel;
        Ok(())
    }
}

/// The pieces of a blob, unverified. After a lost connection it continues where the last piece ended.
pub(crate) struct Pieces {
    connection: Connection,
    digest: BlobDigest,
    /// Number of bytes read.
    offset: u64,
    stream: Option<BoxStream<'static, Result<Bytes, RemoteError>>>,
}

impl Pieces {
    pub(crate) fn new(remote: &Remote, digest: &BlobDigest) -> Self {
        Self { connection: Connection::new(remote), digest: *digest, offset: 0, stream: None }
    }

    /// The next piece; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, RemoteError> {
        loop {
            match self.next_of_stream().await {
                Ok(Some(piece)) => {
                    self.offset += piece.len() as u64;
                    // An empty piece does not count as progress: the wait for a server must still end.
                    if !piece.is_empty() {
                        self.connection.lost_at = None;
                    }
                    return Ok(Some(piece));
                }
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.stream = None;
                    self.connection.again(error, format!("reading {}", self.digest)).await?;
                }
            }
        }
    }

    async fn next_of_stream(&mut self) -> Result<Option<Bytes>, RemoteError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            // Only the end of the stream is missing.
            None if self.offset > 0 && self.offset >= self.digest.size => return Ok(None),
            none => {
                let opened = self.connection.remote.open(&self.digest, self.offset).await?;
                none.insert(opened.ok_or(RemoteError::Missing { digest: self.digest })?)
            }
        };
        stream.try_next().await
    }
}
