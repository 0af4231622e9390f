//! Printing to stdout, which may be a pipe whose reader has closed it.

use std::io::{ErrorKind, Write as _};

use serde::Serialize;

use crate::failure::{FAILED, Failure};

/// Prints bytes to stdout unchanged.
pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::closed()),
        Err(error) => Err(Failure::new(FAILED, "cannot write to stdout", &error)),
    }
}

/// Prints `text` and a newline.
pub fn line(text: &str) -> Result<(), Failure> {
    bytes(format!("{text}\n").as_bytes())
}

/// Prints a value as one line of JSON.
pub fn json<T: Serialize>(value: &T) -> Result<(), Failure> {
    match serde_json::to_string(value) {
        Ok(text) => line(&text),
        Err(error) => Err(Failure::new(FAILED, "cannot print as JSON", &error)),
    }
}
