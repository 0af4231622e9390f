//! A connection that ends when its client stops responding.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};
use tonic::transport::server::Connected;

use crate::{
    limiter::{Registration, Usage},
    tls::Transport,
};

/// Number of bytes with which every HTTP/2 client begins.
const PREFACE_BYTES: usize = 24;

/// A connection that fails when its first bytes do not arrive, when a write makes no progress for a while, or when it
/// is closed in favour of another.
#[derive(Debug)]
pub struct ClientConnection<T = Transport> {
    inner: T,
    registration: Registration,
    /// Timer that runs until the first bytes of HTTP/2 have arrived.
    preface: Option<PrefaceTimer>,
    reading: Duration,
    /// Timer that runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
struct PrefaceTimer {
    missing: usize,
    late: Pin<Box<Sleep>>,
}

/// Bytes that may need a handshake first.
pub trait Establish {
    /// Completes the handshake, and records in `usage` who the client is.
    fn poll_established(&mut self, cx: &mut Context<'_>, usage: &Usage) -> Poll<io::Result<()>>;
}

impl Establish for Transport {
    fn poll_established(&mut self, cx: &mut Context<'_>, usage: &Usage) -> Poll<io::Result<()>> {
        self.poll_handshake(cx, usage)
    }
}

fn made_room() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was closed to make room for another")
}

impl<T: Establish> ClientConnection<T> {
    /// A server of HTTP/2 writes first: the time limit of a client that begins no handshake is kept here, too.
    fn poll_established(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.inner.poll_established(cx, self.registration.usage()) {
            Poll::Pending if self.registration.usage().is_closed(cx) => Poll::Ready(Err(made_room())),
            Poll::Pending => self.on_read(cx, None),
            Poll::Ready(established) => Poll::Ready(established),
        }
    }
}

impl<T> ClientConnection<T> {
    /// Wraps a connection. `preface` is the time within which an HTTP/2 client must begin, `reading` the time within
    /// which it must read some of the bytes that are sent.
    pub(crate) fn new(
        inner: T,
        registration: Registration,
        preface: Option<Duration>,
        reading: Duration,
    ) -> Self {
        let preface =
            preface.map(|within| PrefaceTimer { missing: PREFACE_BYTES, late: Box::pin(sleep(within)) });
        Self { inner, registration, preface, reading, stalled: None }
    }

    /// State of the connection for its requests.
    pub fn usage(&self) -> Arc<Usage> {
        Arc::clone(self.registration.usage())
    }

    /// Counts arrived bytes, and fails the connection if its first bytes are late.
    fn on_read(&mut self, cx: &mut Context<'_>, bytes: Option<usize>) -> Poll<io::Result<()>> {
        match (bytes, &mut self.preface) {
            (Some(bytes), preface) => {
                if bytes > 0 {
                    self.registration.usage().record_bytes();
                }
                if let Some(some) = preface {
                    some.missing = some.missing.saturating_sub(bytes);
                    if some.missing == 0 {
                        *preface = None;
                    }
                }
                Poll::Ready(Ok(()))
            }
            (None, Some(preface)) => {
                ready!(preface.late.as_mut().poll(cx));
                self.preface = None;
                Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "timed out waiting for the HTTP/2 preface of the client",
                )))
            }
            (None, None) => Poll::Pending,
        }
    }

    /// Returns the result of a write, unless the write has waited too long.
    fn limit_stall<R>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let reading = self.reading;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(reading)));
        ready!(stalled.as_mut().poll(cx));
        // A further poll must not find an expired timer.
        stalled.as_mut().reset(Instant::now() + reading);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "timed out waiting for the client to read")))
    }
}

impl<T: AsyncRead + Establish + Unpin> AsyncRead for ClientConnection<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.registration.usage().is_closed(cx) {
            return Poll::Ready(Err(made_room()));
        }
        ready!(self.poll_established(cx))?;
        let before = buf.filled().len();
        match Pin::new(&mut self.inner).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {
                let bytes = buf.filled().len() - before;
                self.on_read(cx, Some(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.on_read(cx, None),
        }
    }
}

impl<T: AsyncWrite + Establish + Unpin> AsyncWrite for ClientConnection<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_established(cx))?;
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.limit_stall(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_established(cx))?;
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.limit_stall(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.limit_stall(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<T> Connected for ClientConnection<T> {
    type ConnectInfo = Arc<Usage>;

    fn connect_info(&self) -> Arc<Usage> {
        self.usage()
    }
}

#[cfg(test)]
mod tests;
