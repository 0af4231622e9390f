//! The index of actions: executions waiting for each pool, executions held by each executor, and
//! resource use of groups.
//!
//! The whole index can be rebuilt from the stream of executions and the executors' heartbeats.

mod dispatch;
mod event;
mod executors;
mod heads;
mod join;
mod query;
mod rebuild;
pub(crate) mod script;

pub use dispatch::{Committed, Grant};
pub use event::{Change, Event, Move, Open};
pub use executors::{Due, Heard, LiveExecution, Lost};
pub use heads::{GroupHead, GroupUse, Heads, QueueHead, ReadFirst, Waiting};
pub use join::{Joined, MergeKey};
pub use query::{Backlog, Queue};
pub use rebuild::{Effects, StaleClaim};

use crate::Index;

/// The index of actions. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Actions(Index);

impl Index {
    /// Returns the index of actions on the same connection.
    pub fn actions(&self) -> Actions {
        Actions(self.clone())
    }
}
