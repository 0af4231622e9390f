//! The threads that this process traces: the kernel reports their ends like those of children.

use std::cell::RefCell;
use std::collections::HashSet;

thread_local! {
    static SEIZED: RefCell<HashSet<u32>> = RefCell::default();
}

pub(crate) fn note(thread: u32) {
    SEIZED.with_borrow_mut(|seized| seized.insert(thread));
}

/// Forgets all threads, which are traced no longer.
pub(crate) fn forget() {
    SEIZED.with_borrow_mut(HashSet::clear);
}

/// Whether what has ended was traced: its use is not that of a command.
pub(crate) fn take(ended: u32) -> bool {
    SEIZED.with_borrow_mut(|seized| seized.remove(&ended))
}
