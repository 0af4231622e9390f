//! The pages in a real Chromium, against a real farm. `make test` runs the short form, `make e2e` all.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod console;
mod hostile;
mod live;
mod looks;
mod orders;
mod quota;
mod sample;
mod sign_in;
mod stranger;
