//! The traces of builds and executions: which spans there are, their ids, and when they are made.
//!
//! All ids are computed from the build or the execution, so a process can name the parent of its span before that parent
//! exists, and without a message. The process that writes the record which ends a run makes the spans of that run: a
//! killed process leaves no span without a parent, because its run is ended by another one.

mod build;
mod execution;
mod further;
mod ids;
pub mod names;
mod waits;

pub use build::{BuildTrace, run_ended};
pub use execution::{Answer, Call, CopyTimes, Ended, ExecutionTrace, copy_ended, ended_alone};
pub use further::FurtherCalls;
pub use waits::{Change, WaitsFor, waits};

use telemetry::spans::{Span, TraceId};

/// The spans of something that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    pub spans: Vec<Span>,
    /// Set if the trace is to be kept whole, although it was not selected at its start.
    pub keep: Option<TraceId>,
}
