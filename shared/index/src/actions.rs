//! The index of actions: which executions wait for which pool, which executor has which, and which executors have room.
//!
//! Everything here can be rebuilt from the stream of executions and the executors' heartbeats.

mod dispatch;
mod event;
mod executors;
mod query;
mod rebuild;
pub(crate) mod script;

pub use dispatch::{Answer, Committed, Heads, Pick, PoolHead, Verdict};
pub use event::{Change, Event};
pub use executors::{Heard, LiveExecution, Lost};
pub use query::Queue;
pub use rebuild::{Applied, Astray};

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
