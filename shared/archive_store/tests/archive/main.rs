//! The archive on real databases.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests fail by panicking")]

mod databases;
mod facts;
mod messages;
mod redelivery;
