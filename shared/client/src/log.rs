//! Reading parts of a console log: from the bus and the store, only what a part needs.

mod collector;
mod lines;
mod open_log;
mod reply;
mod run_logs;
mod search;
mod stored_source;

pub use lines::{LogLines, LogSource, PieceContent, read_lines};
pub use open_log::OpenLog;
pub use reply::{LogGap, LogLine, LogWindow};
pub use run_logs::{BuildLogs, PiecePlace, RunLog};
pub use search::{FoundLine, FoundLines};
pub use stored_source::StoredSource;

use model::{Attempt, InvocationId};

/// Maximum number of lines in a window.
pub const LINES_MAX: u64 = 2000;
/// Number of lines in a window if the reader does not say how many.
pub const LINES_DEFAULT: u64 = 1000;

/// The run of a build whose log is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunChoice {
    /// The last one that started.
    Last,
    Attempt(Attempt),
    Invocation(InvocationId),
}

/// The lines of a log to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRange {
    From {
        /// Number of the first line; the log starts with line 1.
        line: u64,
        lines: u64,
    },
    Tail {
        lines: u64,
    },
}
