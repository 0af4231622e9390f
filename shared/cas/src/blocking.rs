//! Marks threads on which blocking calls may run directly.

use std::cell::Cell;

thread_local! {
    static DEDICATED: Cell<bool> = const { Cell::new(false) };
}

/// Declares that this thread serves one task at a time, so that a blocking call delays no other task. From then on
/// blocking calls run directly on it: handing them to another thread and back takes longer than most of them.
pub fn dedicate_thread() {
    DEDICATED.set(true);
}

/// Whether blocking calls may run on this thread.
pub fn is_thread_dedicated() -> bool {
    DEDICATED.get()
}
