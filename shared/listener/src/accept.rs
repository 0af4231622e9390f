//! Accepting connections.

use std::{io, net::SocketAddr};

use futures::{Stream, stream};
use tokio::net::{TcpListener, TcpStream};

use crate::{connection::ClientConnection, limiter::Limiter};

/// What its clients speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 without HTTP/1 before it, as gRPC has it.
    Http2,
}

/// What a client of HTTP/1.1 that finds no room is told, if it listens.
const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-type: application/json\r\ncontent-length: 83\r\n\r\n{\"error\":\"unavailable\",\"message\":\"as many connections as there may be are in use\"}\n";

/// A listener whose connections are counted.
#[derive(Debug)]
pub struct ClientListener {
    listener: TcpListener,
    protocol: Protocol,
    limiter: Limiter,
}

impl ClientListener {
    /// Connections to `listener` count in `limiter`.
    pub fn new(listener: TcpListener, protocol: Protocol, limiter: Limiter) -> Self {
        Self { listener, protocol, limiter }
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The limiter.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// The next connection for which there is room. It never fails: what passes is waited for.
    pub async fn accept(&self) -> ClientConnection {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    if let Some(connection) = self.usage(stream, address).await {
                        return connection;
                    }
                }
                // That connection is gone already.
                Err(error) if is_of_client(&error) => {}
                Err(error) => {
                    tracing::debug!(%error, "no connection can be accepted");
                    self.limiter.make_room().await;
                }
            }
        }
    }

    async fn usage(&self, stream: TcpStream, address: SocketAddr) -> Option<ClientConnection> {
        let Some(taken) = self.limiter.enter(address.ip().to_canonical()).await else {
            if self.protocol == Protocol::Http1 {
                let _ = stream.try_write(NO_ROOM);
            }
            return None;
        };
        // What is sent is complete, and small when it is urgent.
        let _ = stream.set_nodelay(true);
        let patience = self.limiter.patience();
        let greeting = (self.protocol == Protocol::Http2).then_some(patience.head);
        Some(ClientConnection::new(stream, taken, greeting, patience.reading))
    }

    /// All connections, as a gRPC server takes them.
    pub fn into_incoming(self) -> impl Stream<Item = io::Result<ClientConnection>> {
        stream::unfold(self, async |listener| Some((Ok(listener.accept().await), listener)))
    }
}

fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
