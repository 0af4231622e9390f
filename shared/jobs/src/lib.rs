//! Builds that are a job: a graph of tasks in place of a command.
//!
//! The worker keeps a content-addressed tree of the build's files (`tree`), and which effects of other tasks each
//! task may see (`job_files`, `visible`). A task's command is an action of the farm (`action`, `answer`, `runner`);
//! internal steps need no process and transfer only files from other servers (`fetch`, `extract`). A measured
//! task runs its action several times (`measured`, `series`), and outputs are judged without a process (`compare`). Services
//! that tasks share are an execution of their own (`shared_services`, `beside_services`). `policy::graph`
//! decides when each task starts and what follows from its end (`drive`).

mod action;
mod answer;
mod begin;
mod beside_services;
mod blobs;
mod cancel;
mod compare;
mod drive;
mod effect_paths;
mod examine;
mod extent;
mod extract;
mod fetch;
mod host;
mod job_files;
mod measured;
mod output;
mod outputs;
mod pack;
mod patience;
mod remake;
mod reported;
mod run;
mod runner;
mod running;
mod scan;
mod series;
mod shared_services;
mod small_file;
mod steps;
mod store_wait;
mod task_end;
mod task_error;
mod task_number;
mod task_reports;
mod tree;
mod truncate;
mod unsent;
mod uploads;
mod visible;

pub use cancel::Cancel;
pub use drive::shortcoming;
pub use extract::unpack;
pub use host::Host;
pub use run::{JobEnd, JobEnding, JobRun};
pub use store_wait::{StoreWait, passing_code};
