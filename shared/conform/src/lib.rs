//! Checks a server of the Remote Execution API from the outside: one check per statement that a client relies on,
//! over gRPC alone, against any implementation. [`fault`] tests the checks themselves: a proxy adds one fault to a
//! correct server, so that the corresponding check must fail.

mod actions;
mod check;
mod client;
mod context;
pub mod fault;
mod groups;
mod job;
mod names;
mod origin;
mod report;
mod run;
mod stop;
mod watched;

pub use check::{Group, Level, Statement, statements};
pub use report::{CheckResult, Report, Verdict};
pub use run::{ConformError, Options, run};
