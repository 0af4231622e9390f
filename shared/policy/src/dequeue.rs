//! Algorithm 1 of the paper (section 4.4): decides which of a group's waiting builds may leave the queue.

use model::{Esu, ExecutorType, Occupancy};

/// The state of the algorithm between two builds: what the previous builds have reserved.
#[derive(Debug, Clone)]
pub struct Dequeue<'a> {
    target: &'a Occupancy,
    in_progress: &'a Occupancy,
    reserved: Occupancy,
}

/// Why a build stays in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Throttled {
    /// The executor types that it lacks, in the order of their names.
    pub types: Vec<Lack>,
}

/// An executor type of which a build needs more than is available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// The executor type that is lacking.
    pub executor_type: ExecutorType,
    /// Estimated occupancy of the build.
    pub needed: Esu,
    /// ESU that are left: the target without what is in progress and what builds ahead have reserved.
    pub remaining: Esu,
}

impl<'a> Dequeue<'a> {
    /// Starts at the head of a queue. The target of a type that `target` does not name is 0.
    pub fn new(target: &'a Occupancy, in_progress: &'a Occupancy) -> Self {
        Self { target, in_progress, reserved: Occupancy::default() }
    }

    /// Considers the next build of the queue. Whether or not it may leave, it reserves what it needs of all its types,
    /// so that no later and cheaper build gets the room that it waits for.
    pub fn consider(&mut self, occupancy: &Occupancy) -> Result<(), Throttled> {
        let mut lacking = Vec::new();
        for (kind, needed) in occupancy.iter() {
            let remaining = self.remaining(kind);
            if remaining < needed {
                lacking.push(Lack { executor_type: kind.clone(), needed, remaining });
            }
            self.reserved.add(kind, needed);
        }
        if lacking.is_empty() { Ok(()) } else { Err(Throttled { types: lacking }) }
    }

    /// ESU of `kind` that are left for the next build.
    pub fn remaining(&self, kind: &ExecutorType) -> Esu {
        self.target.get(kind) - self.in_progress.get(kind) - self.reserved.get(kind)
    }

    /// Whether nothing is left of any type, so that no later build can start.
    pub fn is_exhausted(&self) -> bool {
        self.target.iter().all(|(kind, _)| self.remaining(kind) <= Esu::ZERO)
    }

    /// Occupancy that the builds so far have reserved.
    pub fn reserved(&self) -> &Occupancy {
        &self.reserved
    }
}

/// The indices of the builds in `queue` that may leave it.
pub fn dequeue<'a>(
    queue: impl IntoIterator<Item = &'a Occupancy>,
    target: &Occupancy,
    in_progress: &Occupancy,
) -> Vec<usize> {
    let mut state = Dequeue::new(target, in_progress);
    let goes = |(place, occupancy)| state.consider(occupancy).is_ok().then_some(place);
    queue.into_iter().enumerate().filter_map(goes).collect()
}

#[cfg(test)]
mod tests;
