//! Bazel and `BuildStream` against `forebay up`. The tests of `short`, `events`, `inside` and `locked` run in `make test`, all in `make e2e`.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod bazel;
mod buildstream;
mod events;
mod image;
mod inside;
mod kills;
mod locked;
mod scenarios;
mod short;
