//! A client whose connections fail.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "tests fail by panicking")]

mod late_answers;
mod lost_connections;
