use std::net::IpAddr;

use policy::connections::ConnectionLimits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::{Limiter, Patience};

impl Establish for DuplexStream {
    fn poll_established(&mut self, _: &mut Context<'_>, _: &Usage) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A client that begins no handshake.
#[derive(Debug)]
struct Silent(DuplexStream);

impl Establish for Silent {
    fn poll_established(&mut self, _: &mut Context<'_>, _: &Usage) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncRead for Silent {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Silent {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// A server of HTTP/2 writes its settings before it reads.
#[tokio::test]
async fn who_begins_no_handshake_is_closed_though_the_server_only_writes() {
    let limiter = Limiter::new(ConnectionLimits { total: 1, per_client: 1 }, Patience::default());
    let client = IpAddr::from([127, 0, 0, 1]);
    let registration = limiter.enter(client).await.unwrap();
    let (near, _far) = duplex(16);
    let mut near = ClientConnection::new(Silent(near), registration, Some(SHORT), SHORT);
    let error = near.write_all(&[0; 4]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    drop(near);

    // It also makes room for another at once.
    let registration = limiter.enter(client).await.unwrap();
    let (near, _far) = duplex(16);
    let mut near = ClientConnection::new(Silent(near), registration, Some(SHORT * 100), SHORT);
    let silent = tokio::spawn(async move { near.write_all(&[0; 4]).await.unwrap_err().kind() });
    tokio::task::yield_now().await;
    let _other = limiter.enter(client).await.unwrap();
    assert_eq!(silent.await.unwrap(), io::ErrorKind::ConnectionAborted);
}

const SHORT: Duration = Duration::from_millis(300);

async fn connection(preface: Option<Duration>) -> (ClientConnection<DuplexStream>, DuplexStream) {
    let limiter = Limiter::new(ConnectionLimits { total: 2, per_client: 2 }, Patience::default());
    let registration = limiter.enter(IpAddr::from([127, 0, 0, 1])).await.unwrap();
    let (near, far) = duplex(16);
    (ClientConnection::new(near, registration, preface, SHORT), far)
}

#[tokio::test]
async fn a_reader_that_stops_ends_the_connection() {
    let (mut near, mut far) = connection(None).await;
    near.write_all(&[0; 16]).await.unwrap();
    let began = Instant::now();
    let error = near.write_all(&[0; 16]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(began.elapsed() >= SHORT);
    far.read_exact(&mut [0; 16]).await.unwrap();
}

#[tokio::test]
async fn a_slow_reader_does_not() {
    let (mut near, mut far) = connection(None).await;
    let reader = tokio::spawn(async move {
        let mut total = 0;
        let mut buffer = [0; 16];
        while let Ok(read @ 1..) = far.read(&mut buffer).await {
            total += read;
            sleep(SHORT / 4).await;
        }
        total
    });
    near.write_all(&[0; 160]).await.unwrap();
    drop(near);
    assert_eq!(reader.await.unwrap(), 160);
}

#[tokio::test]
async fn who_does_not_begin_is_closed() {
    let (mut near, mut far) = connection(Some(SHORT)).await;
    far.write_all(b"PRI * HTTP").await.unwrap();
    let mut buffer = [0; 64];
    assert_eq!(near.read(&mut buffer).await.unwrap(), 10);
    let error = near.read(&mut buffer).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn who_began_may_be_silent() {
    let (mut near, mut far) = connection(Some(SHORT)).await;
    far.write_all(&[1; 10]).await.unwrap();
    let mut buffer = [0; 24];
    near.read_exact(&mut buffer[..10]).await.unwrap();
    far.write_all(&[1; 14]).await.unwrap();
    near.read_exact(&mut buffer[10..]).await.unwrap();
    assert!(tokio::time::timeout(SHORT * 3, near.read(&mut buffer)).await.is_err());
}
