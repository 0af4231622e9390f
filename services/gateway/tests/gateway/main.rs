//! A gateway in this process with the schedulers of a farm.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

mod admission;
mod build_events;
mod execution;
mod leaving;
mod logs_and_assets;
mod merging;
mod waiters;
