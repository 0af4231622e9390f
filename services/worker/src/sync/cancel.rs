//! Ends the work on files early when the build is stopped.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
};

/// Fails if `cancelled` is set.
pub(super) fn check(cancelled: &AtomicBool) -> io::Result<()> {
    if cancelled.load(Ordering::Relaxed) {
        return Err(io::Error::new(io::ErrorKind::Interrupted, "the build was stopped"));
    }
    Ok(())
}
