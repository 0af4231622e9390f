//! Whether a farm keeps its promises while everything is killed under it.
//!
//! A [`History`] holds what the event stream, the builds themselves and the killer wrote down. [`check`] holds it
//! against the invariants of the design, a rule each, as pure functions. [`mutate`] breaks a good history in one
//! way each, which proves that the rules see. [`storm`] makes a history from a real farm. [`actions`] does the
//! same for actions.

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
