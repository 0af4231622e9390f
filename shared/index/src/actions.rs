//! The index of actions: which executions wait for which pool, which executor has which, and what groups had.
//!
//! Everything here can be rebuilt from the stream of executions and the executors' heartbeats.

mod dispatch;
mod event;
mod executors;
mod join;
mod query;
mod rebuild;
pub(crate) mod script;

pub use dispatch::{Committed, Grant, GroupHead, Heads, PoolHead, Waiting};
pub use event::{Change, Event, Move, Open};
pub use executors::{Due, Heard, LiveExecution, Lost};
pub use join::{Joined, MergeKey};
pub use query::Queue;
pub use rebuild::{Applied, Astray, Effects};

use crate::Index;

/// The index of actions. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Actions(Index);

impl Index {
    /// The index of actions, over the same connection.
    pub fn actions(&self) -> Actions {
        Actions(self.clone())
    }
}
