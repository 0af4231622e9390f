//! Sandboxes on this machine.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests fail by panicking"
)]

#[macro_use]
mod support;

mod attacks;
mod calls;
mod commands;
mod edges;
mod hidden;
mod hostile;
mod image_users;
mod interactor;
mod limits;
mod services;
