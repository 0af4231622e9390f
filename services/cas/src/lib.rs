//! The content-addressable store and the action cache over gRPC, as defined by the Remote Execution API.
//!
//! [`routes`] returns the services for servers of the protocol: the gateway adds execution to them, and the `cas`
//! service ([`run`]) serves them alone, as a cache, and evicts unused blobs.

mod actions;
mod api;
mod blobs;
mod budget;
mod capabilities;
mod chunks;
mod compress;
mod fault;
mod server;
mod service;
mod stream;
mod tree;
mod usage;

pub use api::{
    AnyInstance, BlobApi, Instance, Instances, Limits, LiveRead, LogPiece, LogProgress, LogStream, LogWrite,
};
pub use budget::{Budget, Held, Metered};
pub use capabilities::{
    API_HIGH, API_LOW, BATCH_BYTES_MAX, NODE_PROPERTIES, PRIORITY_MAX, PRIORITY_MIN, capabilities,
};
pub use fault::{bounded, status_of};
pub use server::{routes, serve, serve_by, server};
pub use service::{keep_bounds, run};
pub use usage::{StoreRoom, StoreUsage, store_rooms};
