//! The Redis indexes: waiting, offered and running builds and idle workspaces; in [`actions`] the same for executions
//! of actions and their executors.
//!
//! The indexes can be rebuilt from the event stream and the workers' heartbeats. Only this crate contains the names of
//! keys; atomic operations are scripts in `lua/`.

mod acl;
pub mod actions;
mod connection;
mod depths;
mod dispatch;
mod error;
mod event;
mod link;
mod login;
mod query;
mod rebuild;
mod script;
mod why;

pub use acl::{acl_rules, operator_acl_rules};
pub use connection::Index;
pub use depths::{Depths, QueueDepth, WaitingCount};
pub use dispatch::{
    CommitLimits, Heads, Held, Pick, Settlement, Verdict, WaitingBuild, WaitingGroup, Wanted,
};
pub use error::IndexError;
pub use event::{Change, IndexEvent, Traits};
pub use query::{Counts, Health};
pub use rebuild::{Applied, RebuildToken};
pub use why::{BusyWith, Demand, ExecutorDemand, Standing, StandingLimits};
