//! Where calls that block are made.

use std::cell::Cell;

thread_local! {
    static DEDICATED: Cell<bool> = const { Cell::new(false) };
}

/// Declares that this thread serves one thing at a time: nobody else waits when a call of it blocks. From then on what
/// blocks is done on it. The hop to another thread and back takes longer than most of what there is to do.
pub fn dedicate_thread() {
    DEDICATED.set(true);
}

/// Whether what blocks may be done on this thread.
pub fn is_thread_dedicated() -> bool {
    DEDICATED.get()
}
