//! Checks a server of the Remote Execution API from the outside: one check per statement that a client relies on,
//! over gRPC alone, against any implementation. [`fault`] tests the checks themselves: a proxy adds one fault to a
//! correct server, so that the corresponding check must fail.

mod actions;
mod check;
mod client;
mod context;
mod digest_functions;
pub mod fault;
mod groups;
mod job;
mod names;
mod options;
mod origin;
mod report;
mod run;
mod statements;
mod stop;
mod watched;

pub use check::{Group, Level};
pub use options::Options;
pub use report::{CheckResult, Report, Verdict};
pub use run::{ConformError, run};
pub use statements::{Statement, statements};
