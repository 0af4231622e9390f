//! Answers from the archive. Each is a few statements on a connection for reading, with an index for each condition that
//! selects rows; `tests` read the plans of all of them.

mod actions;
mod audit;
mod builds;
mod console;
mod content;
mod history;
mod invocations;
mod list;
mod page;
mod plan;
mod query;
mod report;
mod status;
mod test_grid;
mod text;
mod tools;
mod trigrams;
