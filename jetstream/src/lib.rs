//! Definition of every stream, bucket and consumer of Forebay.
//!
//! `forebay up` and `forebay topology --apply` create what is missing, and every service checks it at its start. Differences on
//! the server are reported, never overwritten silently.

mod apply;
mod check;
mod render;
mod topology;

pub use apply::{Difference, TopologyError, ensure, open, report};
pub use check::check;
pub use render::{to_table, to_yaml};
pub use topology::{ConsumerSpec, EXECUTOR_CONSUMER, LEASE_CONSUMER, Topology, request_consumer};
