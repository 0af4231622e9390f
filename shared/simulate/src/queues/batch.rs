//! Many streams, policies and seeds, on all processors.

use std::{
    num::NonZero,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::{
    engine::{Run, run_queue},
    name::{QueuePolicy, Reading},
    outcome::{QueueOutcome, outcome},
    stream::{InvalidStream, Stream},
};

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Each stream through each of these.
    pub policies: Vec<QueuePolicy>,
    /// In which of the thesis's two experiments.
    pub reading: Reading,
    /// The first seed.
    pub first_seed: u64,
    /// How many seeds, from the first on.
    pub seeds: u64,
}

/// What became of a workload by a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Tally {
    /// The name of the streams.
    pub workload: String,
    /// The policy.
    pub policy: QueuePolicy,
    /// One for each seed, in their order.
    pub outcomes: Vec<QueueOutcome>,
}

type Outcomes = Result<Vec<QueueOutcome>, InvalidStream>;

/// Runs all of `batch` for each of `names`, of which `stream` gives the stream for a seed. The result does not depend on how
/// many processors there are.
pub fn run_batch<F>(names: &[String], batch: &Batch, stream: F) -> Result<Vec<Tally>, InvalidStream>
where
    F: Fn(usize, u64) -> Stream + Sync,
{
    let seeds = usize::try_from(batch.seeds).unwrap_or(usize::MAX);
    let count = names.len().saturating_mul(seeds);
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Outcomes)>> = Mutex::new(Vec::with_capacity(count));
    let work = || {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= count {
                return;
            }
            let seed = batch.first_seed.wrapping_add((task % seeds) as u64);
            let outcomes = run_one(&stream(task / seeds, seed), batch, seed);
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((task, outcomes));
        }
    };
    thread::scope(|scope| {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        for _ in 0..processors.min(count) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_unstable_by_key(|(task, _)| *task);
    let mut tallies: Vec<Tally> = names
        .iter()
        .flat_map(|name| batch.policies.iter().map(move |policy| (name, *policy)))
        .map(|(name, policy)| Tally { workload: name.clone(), policy, outcomes: Vec::new() })
        .collect();
    for (task, outcomes) in done {
        let first = task / seeds * batch.policies.len();
        for (tally, outcome) in tallies.iter_mut().skip(first).zip(outcomes?) {
            tally.outcomes.push(outcome);
        }
    }
    Ok(tallies)
}

fn run_one(stream: &Stream, batch: &Batch, seed: u64) -> Outcomes {
    let through = |policy: &QueuePolicy| {
        let run = Run { policy: *policy, reading: batch.reading, seed };
        run_queue(stream, &run).map(|starts| outcome(stream, &starts))
    };
    batch.policies.iter().map(through).collect()
}
