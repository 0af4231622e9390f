//! Definition of every stream, bucket and consumer of Forebay.
//!
//! Every service applies it at its start; differences on the server are reported, never overwritten silently.

mod apply;
mod check;
mod render;
mod topology;

pub use apply::{Difference, TopologyError, ensure, open};
pub use check::check;
pub use render::{to_table, to_yaml};
pub use topology::{ConsumerSpec, EXECUTOR_CONSUMER, LEASE_CONSUMER, Topology, request_consumer};
