//! The CAS over gRPC: a server in this process, and clients of it.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests fail by panicking"
)]

mod common;

mod actions;
mod backing;
mod blobs;
mod conformance;
mod logs;
mod speed;
mod streams;
