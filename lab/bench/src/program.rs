//! The program that is measured.

use std::path::PathBuf;

use command_line::find_program;

use crate::error::BenchError;

pub(crate) fn forebay() -> Result<PathBuf, BenchError> {
    let missing = "forebay is neither beside forebay-lab nor in PATH: build it with `cargo build -p forebay`";
    find_program("forebay").ok_or_else(|| BenchError::plain(missing))
}
