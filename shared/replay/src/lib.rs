//! Jobs of the past in virtual time: records builds, and runs them through one queue in another order or on other workers.
//!
//! Time advances in whole milliseconds. Arrivals at an instant precede ends at the same instant. Handing a job to a worker
//! is instantaneous, and a worker runs one job at a time.

mod classes;
mod events;
mod one;
mod outcome;
mod recorder;
mod run;
mod stream;

pub use classes::Classes;
pub use events::Events;
pub use one::{IdleWorkers, Order, one_queue, waiting_job};
pub use outcome::{BINS, Lateness, QueueOutcome, WINDOWS, bin_from, lateness, outcome};
pub use recorder::{RecordedBuild, Recorder};
pub use run::{Dispatch, Start, Ties, drive};
pub use stream::{Estimation, Interner, InvalidStream, Job, Stream, Worker, alike_workers};
