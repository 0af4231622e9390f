//! Interfaces of log streams, which other services store.

use bytes::Bytes;
use callers::Caller;
use futures::{future::BoxFuture, stream::BoxStream};
use tonic::Status;

/// The bytes of a log as they arrive.
pub type LogStream = BoxStream<'static, Result<Bytes, Status>>;

/// Reads log streams: of running actions, and of clients.
pub trait LiveRead: Send + Sync + 'static {
    /// Reads the stream `id` of `parent` from `offset` on, until it is complete or `limit` bytes are read.
    /// `NOT_FOUND` for an unknown stream, and for one that the caller may not see.
    fn read<'a>(
        &'a self,
        caller: &'a Caller,
        parent: &'a str,
        id: &'a str,
        offset: u64,
        limit: Option<u64>,
    ) -> BoxFuture<'a, Result<LogStream, Status>>;
}

/// A piece of a log stream that a client writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogPiece {
    Data(Bytes),
    /// The stream is complete.
    Finish,
}

/// Progress of a log stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogProgress {
    /// Number of bytes written.
    pub committed: u64,
    /// Whether the stream is complete and accepts no more bytes.
    pub complete: bool,
}

/// Writes log streams of clients.
pub trait LogWrite: Send + Sync + 'static {
    /// Appends `pieces` from `offset` on to the stream `id` of `parent`; `token` authorises the write. Returns when
    /// the pieces end or contain [`LogPiece::Finish`].
    fn write<'a>(
        &'a self,
        parent: &'a str,
        id: &'a str,
        token: &'a str,
        offset: u64,
        pieces: BoxStream<'static, Result<LogPiece, Status>>,
    ) -> BoxFuture<'a, Result<LogProgress, Status>>;

    /// Returns the progress of a log stream.
    fn progress<'a>(
        &'a self,
        parent: &'a str,
        id: &'a str,
        token: &'a str,
    ) -> BoxFuture<'a, Result<LogProgress, Status>>;
}
