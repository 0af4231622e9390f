//! Accepts client connections within the limits of the process.

use std::{io, net::SocketAddr};

use futures::{Stream, stream};
use tokio::net::{TcpListener, TcpStream};

use crate::{
    connection::ClientConnection,
    limiter::Limiter,
    protocol::Protocol,
    tls::{Tls, Transport},
};

/// Answer to an HTTP/1.1 client whose connection is refused, sent without waiting for a request.
const LIMIT_REACHED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-type: application/json\r\ncontent-length: 74\r\n\r\n{\"error\":\"unavailable\",\"message\":\"connection limit reached, retry later\"}\n";

/// A listener whose connections are counted by a limiter.
#[derive(Debug)]
pub struct ClientListener {
    listener: TcpListener,
    protocol: Protocol,
    limiter: Limiter,
    tls: Option<Tls>,
}

impl ClientListener {
    /// Counts the connections to `listener` in `limiter`, without TLS.
    pub fn new(listener: TcpListener, protocol: Protocol, limiter: Limiter) -> Self {
        Self { listener, protocol, limiter, tls: None }
    }

    /// The same listener with TLS, if any.
    #[must_use]
    pub fn with_tls(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// The next connection that the limits allow. Never fails: temporary errors are waited out.
    pub async fn accept(&self) -> ClientConnection {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    if let Some(connection) = self.admit(stream, address).await {
                        return connection;
                    }
                }
                // The client has already closed that connection.
                Err(error) if is_of_client(&error) => {}
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection, retrying");
                    self.limiter.make_room().await;
                }
            }
        }
    }

    async fn admit(&self, stream: TcpStream, address: SocketAddr) -> Option<ClientConnection> {
        let Some(registration) = self.limiter.enter(address.ip().to_canonical()).await else {
            if self.protocol == Protocol::Http1 && self.tls.is_none() {
                // The connection is closed in any case; the answer only explains why.
                let _ = stream.try_write(LIMIT_REACHED);
            }
            return None;
        };
        // Messages are sent complete, and small ones are urgent. Without the option they are only slower.
        let _ = stream.set_nodelay(true);
        let patience = self.limiter.patience();
        let preface = (self.protocol == Protocol::Http2).then_some(patience.head);
        let transport = match &self.tls {
            None => Transport::Plain(stream),
            Some(tls) => tls.begin(stream, self.protocol),
        };
        Some(ClientConnection::new(transport, registration, preface, patience.reading))
    }

    /// All connections, as a stream for a gRPC server.
    pub fn into_incoming(self) -> impl Stream<Item = io::Result<ClientConnection>> {
        stream::unfold(self, async |listener| Some((Ok(listener.accept().await), listener)))
    }
}

fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
