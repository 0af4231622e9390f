//! The Redis indexes: which builds wait, are offered or run, and which workspaces are idle; in [`actions`] the same for
//! executions of actions and their executors.
//!
//! Everything here can be rebuilt from the event stream and the workers' heartbeats. Keys are spelt in this crate
//! only; what must be atomic is a script in `lua/`.

pub mod actions;
mod connection;
mod dispatch;
mod event;
mod query;
mod rebuild;
mod script;
mod why;

pub use connection::{Index, IndexError};
pub use dispatch::{Heads, Held, Pick, Settlement, Verdict, WaitingBuild, WaitingGroup, Wanted};
pub use event::{Change, IndexEvent, Traits};
pub use query::{Counts, Health};
pub use rebuild::{Applied, RebuildToken};
pub use why::{BusyWith, Demand, Standing, StandingLimits};
