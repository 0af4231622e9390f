//! What every server here listens through: limits of connections and of descriptors, and times within which a client has
//! to send what it began to send and to read what it asked for.
//!
//! [`Limiter`] counts the connections of a process, [`ClientListener`] accepts them. [`serve_http`] serves HTTP on one, and
//! [`CountedCalls`] with [`ClientListener::into_incoming`] gives the same to a gRPC server.

mod accept;
mod body;
mod connection;
mod descriptors;
mod grpc;
mod http;
mod limiter;

pub use accept::{ClientListener, Protocol};
pub use body::TooSlow;
pub use connection::ClientConnection;
pub use descriptors::{Descriptors, descriptors, raise_descriptors};
pub use grpc::CountedCalls;
pub use http::serve_http;
pub use limiter::{Limiter, Patience, Usage};
