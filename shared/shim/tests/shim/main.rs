//! The shim with real commands.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests fail by panicking"
)]

#[macro_use]
mod support;

mod commands;
mod death;
mod limits;
mod survivors;
