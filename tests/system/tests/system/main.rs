//! Whole-system tests: real servers, real services, each test with its own.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests fail by panicking")]

mod check;
mod steps;
mod worker_death;
