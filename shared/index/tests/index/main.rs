//! The index on a real Redis.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

mod action_losses;
mod action_order;
mod action_reads;
mod actions;
mod builds;
mod join;
mod renewed;
