//! Which executor of a pool gets which waiting execution.

use std::{cmp::Reverse, collections::BinaryHeap};

/// An executor with free slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Free<E> {
    /// The executor.
    pub executor: E,
    /// How many.
    pub slots: u32,
}

/// An execution and the executor that gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned<W, E> {
    /// The execution.
    pub execution: W,
    /// The executor.
    pub executor: E,
}

/// Assigns `waiting` (in the order in which they must start) to `free` executors of their pool, each to the one with the
/// most slots left; of equals the one given first.
pub fn assign<W, E: Clone>(waiting: Vec<W>, free: &[Free<E>]) -> Vec<Assigned<W, E>> {
    let ranked = free.iter().enumerate().map(|(index, free)| (free.slots, Reverse(index)));
    let mut heap: BinaryHeap<(u32, Reverse<usize>)> = ranked.filter(|(slots, _)| *slots > 0).collect();
    let mut assigned = Vec::new();
    for execution in waiting {
        let Some((slots, Reverse(index))) = heap.pop() else { break };
        let Some(chosen) = free.get(index) else { break };
        assigned.push(Assigned { execution, executor: chosen.executor.clone() });
        if slots > 1 {
            heap.push((slots - 1, Reverse(index)));
        }
    }
    assigned
}

#[cfg(test)]
mod tests;
