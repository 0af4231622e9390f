//! The protocols of listening sockets.

/// Protocol of the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    /// HTTP/2 without a preceding HTTP/1 upgrade, as in gRPC.
    Http2,
}
