//! Files that are given as arguments.

use std::{io, path::Path};

/// The text of a file, or of standard input if the path is `-`.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    if path == Path::new("-") { io::read_to_string(io::stdin()) } else { std::fs::read_to_string(path) }
}
