//! The content-addressable store and the action cache over gRPC, as defined by the Remote Execution API.
//!
//! [`routes`] returns the services for servers of the protocol: the `cas` service serves them alone, as a cache, and
//! the gateway adds execution to them.

mod actions;
mod api;
mod blobs;
mod budget;
mod capabilities;
mod chunks;
mod compress;
mod fault;
mod limits;
mod log_streams;
mod server;
mod stream;
mod tree;
mod uploads;
mod zone;

pub use api::BlobApi;
pub use budget::{Budget, Held, Metered};
pub use capabilities::{API_HIGH, API_LOW, NODE_PROPERTIES, PRIORITY_MAX, PRIORITY_MIN, capabilities};
pub use fault::{bounded, status_of};
pub use limits::{BATCH_BYTES_MAX, Limits};
pub use log_streams::{LiveRead, LogPiece, LogProgress, LogStream, LogWrite};
pub use server::{guarded, routes, serve, serve_by, server};
pub use zone::seen_by_call;
