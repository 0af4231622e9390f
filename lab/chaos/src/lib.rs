//! Tests whether a farm keeps its promises while all its processes are killed repeatedly.
//!
//! A [`History`] holds the records of the event stream, the builds themselves and the killer. [`check`] compares it
//! with the invariants of the design, one rule each, as pure functions. [`mutate`] breaks a good history in one way
//! at a time, which proves that the rules detect violations. [`storm`] produces a history from a real farm.
//! [`actions`] does the same for actions.

#[expect(clippy::expect_used, reason = "a test harness fails by panicking")]
pub mod actions;
mod finding;
mod history;
pub mod mutate;
mod random;
mod rules;
mod run_file;
#[expect(clippy::expect_used, reason = "a test harness fails by panicking")]
pub mod storm;
pub mod synthetic;

pub use actions::{ActionHistory, ActionMutation, Broken, action_history};
pub use finding::{Finding, Rule};
pub use history::{Event, History, Kill, Run, What};
pub use random::Random;
pub use rules::{Counts, Verdict, check};
pub use run_file::{parse_runs, script};
