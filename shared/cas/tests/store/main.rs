//! Tests of the store through its public API, on real folders.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "the exemption of tests does not reach their helpers"
)]

mod actions;
mod backing;
mod blobs;
mod files;
mod retention;
mod splits;
mod support;
mod trees;
mod zones;
