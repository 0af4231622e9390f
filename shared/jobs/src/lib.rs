//! Builds that are a job: a graph of tasks in place of a command.
//!
//! The worker keeps a content-addressed tree of the build's files (`tree`), and which effects of other tasks each
//! task may see (`job_files`, `visible`). A task's command is an action of the farm (`action`, `answer`, `runner`);
//! internal steps need no process and transfer only files from other servers (`fetch`, `extract`). `policy::graph`
//! decides when each task starts and what follows from its end (`drive`).

mod action;
mod answer;
mod begin;
mod blobs;
mod cancel;
mod drive;
mod effect_paths;
mod extent;
mod extract;
mod fetch;
mod host;
mod job_files;
mod output;
mod outputs;
mod patience;
mod remake;
mod run;
mod runner;
mod running;
mod scan;
mod store_wait;
mod task_error;
mod task_number;
mod task_reports;
mod tree;
mod unsent;
mod uploads;
mod visible;

pub use cancel::Cancel;
pub use drive::shortcoming;
pub use host::Host;
pub use run::{JobEnd, JobEnding, JobRun};
pub use store_wait::{StoreWait, passing_code};
