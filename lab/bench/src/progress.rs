//! Progress of a benchmark on stderr.

use std::io::Write as _;

/// Prints one line to stderr.
pub(crate) fn say(line: &str) {
    // Stderr may be closed.
    let _ = writeln!(std::io::stderr(), "forebay: {line}");
}
