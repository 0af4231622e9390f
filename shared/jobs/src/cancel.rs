//! A flag that stops blocking work.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Stops work on files when it is dropped, because its result is no longer wanted.
#[derive(Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// The flag that the work must check.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
