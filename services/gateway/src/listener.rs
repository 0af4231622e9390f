//! Connections that end when the client stops reading.
//!
//! Without this, a client that keeps its connection open and reads nothing would hold a download or an event
//! stream, with all that is behind it, for ever.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::serve::Listener;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::{Instant, Sleep, sleep},
};

/// A client may pause reading for this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Accepts connections and guards them.
#[derive(Debug)]
pub(crate) struct Guarded {
    inner: TcpListener,
}

impl Guarded {
    /// Guards the connections of `inner`.
    pub(crate) fn new(inner: TcpListener) -> Self {
        Self { inner }
    }
}

impl Listener for Guarded {
    type Io = Connection<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = Listener::accept(&mut self.inner).await;
        // Events are small and should not wait for more.
        let _ = stream.set_nodelay(true);
        (Connection::new(stream, PATIENCE), address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.inner.local_addr()
    }
}

/// A connection that fails when a write has made no progress for a while.
#[derive(Debug)]
pub(crate) struct Connection<T> {
    inner: T,
    patience: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> Connection<T> {
    fn new(inner: T, patience: Duration) -> Self {
        Self { inner, patience, stalled: None }
    }

    /// Passes on what a write said, unless it has waited too long.
    fn watch<R>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        // A further poll must not find a timer that is done.
        stalled.as_mut().reset(Instant::now() + patience);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Connection<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Connection<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::{Connection, Duration, Instant, io};

    #[tokio::test]
    async fn a_reader_that_stops_ends_the_connection() {
        let (near, mut far) = duplex(16);
        let mut near = Connection::new(near, Duration::from_millis(200));
        near.write_all(&[0; 16]).await.unwrap();
        let began = Instant::now();
        let error = near.write_all(&[0; 16]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= Duration::from_millis(200));
        far.read_exact(&mut [0; 16]).await.unwrap();
    }

    #[tokio::test]
    async fn a_slow_reader_does_not() {
        let (near, mut far) = duplex(16);
        let mut near = Connection::new(near, Duration::from_millis(400));
        let reader = tokio::spawn(async move {
            let mut total = 0;
            let mut buffer = [0; 16];
            while let Ok(read @ 1..) = far.read(&mut buffer).await {
                total += read;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            total
        });
        near.write_all(&[0; 160]).await.unwrap();
        drop(near);
        assert_eq!(reader.await.unwrap(), 160);
    }
}
