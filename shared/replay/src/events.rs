//! Events in virtual time.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Events in the order of their times in milliseconds; events of one time are in the order of their values.
#[derive(Debug)]
pub struct Events<E>(BinaryHeap<Reverse<(u64, E)>>);

impl<E: Ord> Default for Events<E> {
    fn default() -> Self {
        Self(BinaryHeap::new())
    }
}

impl<E: Ord> Events<E> {
    pub fn push(&mut self, at: u64, event: E) {
        self.0.push(Reverse((at, event)));
    }

    /// Time of the first event.
    pub fn next_at(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// Removes the first event.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        self.0.pop().map(|Reverse(first)| first)
    }

    /// Removes the first event if `is_due` holds for its time.
    pub fn pop_if(&mut self, is_due: impl FnOnce(u64) -> bool) -> Option<(u64, E)> {
        if is_due(self.next_at()?) { self.pop() } else { None }
    }
}
