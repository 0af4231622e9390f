//! Listening sockets of all servers: limits of connections and descriptors, and timeouts for clients that stop sending
//! a request or reading an answer.
//!
//! [`Limiter`] counts the connections of a process, [`ClientListener`] accepts them. [`serve_http`] serves HTTP on
//! one, and [`CountedCalls`] with [`ClientListener::into_incoming`] provides the same for a gRPC server.

mod accept;
mod body;
mod call;
mod connection;
mod descriptors;
mod grpc;
mod http;
mod limiter;
mod protocol;
mod tls;

pub use accept::ClientListener;
pub use body::TooSlow;
pub use connection::ClientConnection;
pub use descriptors::{Descriptors, descriptors, raise_descriptors};
pub use grpc::CountedCalls;
pub use http::serve_http;
pub use limiter::{Limiter, Patience, Usage};
pub use protocol::Protocol;
pub use tls::{Tls, TlsError, TlsFiles, Transport};
