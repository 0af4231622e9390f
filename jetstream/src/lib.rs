//! Every stream, bucket and consumer of Forebay, defined once.
//!
//! Any service applies it at its start; what exists and differs is reported, never silently overwritten.

mod apply;
mod check;
mod render;
mod topology;

pub use apply::{Difference, TopologyError, ensure, open};
pub use check::check;
pub use render::{to_table, to_yaml};
pub use topology::{ConsumerSpec, EXECUTOR_CONSUMER, LEASE_CONSUMER, Topology, request_consumer};
