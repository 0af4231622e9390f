//! Queues in virtual time: streams of jobs through the policies of `policy::queue`, as in chapter 3 of the thesis.
//!
//! Time advances in whole milliseconds. Arrivals at an instant precede ends at the same instant; simultaneous ends
//! are ordered by worker number (with the reading `code`: by the order in which the jobs started). Handing a job to a
//! worker is instantaneous, and a worker runs one job at a time.

mod batch;
mod engine;
mod errors;
mod figures;
mod generate;
mod introsort;
mod name;
mod outcome;
mod replay_files;
mod stream;
mod trace;
mod worker_file;
mod workload;

pub use batch::{Batch, Tally, run_batch};
pub use engine::{Run, Start, run_queue};
pub use figures::{QueueFigures, figures};
pub use name::{Estimation, ParsePolicyError, QueuePolicy, Reading};
pub(crate) use outcome::{BINS, WINDOWS, bin_from};
pub use outcome::{Lateness, QueueOutcome, lateness, outcome};
pub use replay_files::{InvalidReplay, read_replay};
pub use stream::{InvalidStream, Job, Stream, Worker};
pub(crate) use trace::numbered_lines;
pub use trace::{InvalidTrace, Trace, read_trace, write_trace};
pub use worker_file::{InvalidWorkers, alike_workers, read_workers, write_workers};
pub use workload::Workload;

#[cfg(test)]
mod tests;
