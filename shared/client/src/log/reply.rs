//! A window of a log as JSON.

use model::{Attempt, InvocationId, OutputStream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Some lines of the console output of a run. Stdout and stderr in order of arrival make one log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogWindow {
    /// Number of the attempt that wrote the log. Absent: none has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// Id of the invocation that wrote the log. Absent while it has no output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<InvocationId>,
    /// The lines, in order. They may be fewer than requested: a window has at most 4 MiB of text.
    pub lines: Vec<LogLine>,
    /// Output that is missing in or next to these lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<LogGap>,
    /// Number of the line that follows the window. Absent: the log has no more lines yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_line: Option<u64>,
    /// Number of lines of the log so far. Text after the last line end is a line.
    pub total_lines: u64,
    /// Number of bytes of the log so far, with those that are missing.
    pub total_bytes: u64,
    /// Whether the run has ended, so that the log does not grow.
    pub complete: bool,
}

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// Number of the line. The first one has number 1.
    pub number: u64,
    /// Output stream that wrote its first byte: `stdout` or `stderr`.
    pub stream: OutputStream,
    /// The first 16 KiB of the line without its line end. Bytes that are not UTF-8 are U+FFFD.
    pub text: String,
    /// Whether text of the line is absent: it is longer, or next to output that is missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// Output that is missing in a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogGap {
    /// Number of the line in which it starts.
    pub line: u64,
    /// Number of line ends that are missing. Those of output that was never stored are not known and not counted.
    pub lines: u64,
    /// Number of bytes that are missing. 0: not known.
    pub bytes: u64,
    /// Why they are missing.
    pub reason: String,
}
