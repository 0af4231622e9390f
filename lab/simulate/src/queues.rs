//! Queues in virtual time: streams of jobs through the policies of `policy::queue`, as in chapter 3 of the thesis.
//!
//! With the reading `code`, simultaneous ends are ordered by the starts of the jobs; otherwise by worker number.

mod batch;
mod engine;
mod errors;
mod figures;
mod generate;
mod introsort;
mod name;
mod replay_files;
mod trace;
mod worker_file;
mod workload;

pub use batch::{Batch, Tally, run_batch};
pub use engine::{Run, run_queue};
pub use figures::{QueueFigures, figures};
pub use name::{ParsePolicyError, QueuePolicy, Reading};
pub use replay_files::{InvalidReplay, read_replay};
pub(crate) use trace::numbered_lines;
pub use trace::{InvalidTrace, Trace, read_trace, write_trace};
pub use worker_file::{InvalidWorkers, alike_workers, read_workers, write_workers};
pub use workload::Workload;

#[cfg(test)]
mod tests;
