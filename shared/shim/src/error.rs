//! Errors of a shim, from the worker's side.

use std::io;
use std::path::PathBuf;

use crate::frame::Malformed;

/// An error of a shim.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    #[error("cannot start the shim {program}")]
    Start { program: PathBuf, source: io::Error },
    /// The shim is dying, and with it every process of its command. [`Shim::end`](crate::Shim::end) returns when all
    /// of them are dead.
    #[error("the shim has ended")]
    Gone,
    #[error("the socket to the shim failed")]
    Socket(#[source] io::Error),
    /// The received bytes do not follow the protocol.
    #[error("protocol error from the shim: {0}")]
    Protocol(String),
    /// The command is larger than a shim accepts; the kernel would refuse it too.
    #[error("the command has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Its arguments, variables and directory together, in bytes.
        bytes: usize,
        /// The maximum accepted size, in bytes.
        limit: usize,
    },
}

impl From<io::Error> for ShimError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) => Self::Gone,
            _ => Self::Socket(error),
        }
    }
}

impl From<Malformed> for ShimError {
    fn from(malformed: Malformed) -> Self {
        Self::Protocol(malformed.to_string())
    }
}
