//! Maintains an index from its log: applies the log's messages to the index, in order, each once; rebuilds the index
//! after Redis has lost it. The same for builds and for executions of actions.

mod projection;
mod projector;

pub use projection::{Projection, Steps};
pub use projector::run;
