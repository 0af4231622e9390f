//! Builds that are a job: a graph of tasks in the place of a command.
//!
//! The worker that has such a build keeps a tree of its files by content (`tree`), with what each task may see of what
//! others made (`world`, `seen`). A task's command is an action of the farm (`action`, `answer`, `runner`); internal steps
//! need no process and move no bytes but those that come from elsewhere (`fetch`, `extract`). What starts when, and what
//! follows from an end, says `policy::graph` (`drive`).

mod action;
mod answer;
mod begin;
mod blobs;
mod drive;
mod extent;
mod extract;
mod fetch;
mod output;
mod outputs;
mod patience;
mod remake;
mod roots;
mod runner;
mod scan;
mod seen;
mod told;
mod tree;
mod unsent;
mod uploads;
mod world;

pub(crate) use drive::{JobEnd, shortcoming};
