//! An engine that changes good inputs until a parser panics, needs too long or too much memory.
//!
//! It works on stable Rust, without instrumented code: an input whose outcome is new, such as another error, is changed
//! further. Each target has a few seconds; `FOREBAY_FUZZ_SECONDS` sets them, `FOREBAY_FUZZ_SEED` the seed of its random
//! numbers. `FOREBAY_FUZZ_INPUT`, in base64, is the only input of a run: the one of a failure.
#![expect(clippy::panic, reason = "a test harness fails by panicking")]

mod corpus;
mod mutate;
mod outcome;
mod random;
mod resident;
mod run;
mod shrink;

pub use run::{Target, fuzz};
