//! Runs many streams, policies and seeds on all processors.

use std::{
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use parking_lot::Mutex;
use replay::{InvalidStream, QueueOutcome, Stream, outcome};

use super::{
    engine::{Run, run_queue},
    name::{QueuePolicy, Reading},
};

/// The policies and seeds of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Policies to run each stream through.
    pub policies: Vec<QueuePolicy>,
    /// Which of the two experiments of the thesis to reproduce.
    pub reading: Reading,
    pub first_seed: u64,
    /// Number of consecutive seeds, starting with `first_seed`.
    pub seeds: u64,
}

/// Outcomes of one workload under one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Tally {
    /// Name of the workload's streams.
    pub workload: String,
    pub policy: QueuePolicy,
    /// One outcome per seed, in the order of the seeds.
    pub outcomes: Vec<QueueOutcome>,
}

type Outcomes = Result<Vec<QueueOutcome>, InvalidStream>;

/// Runs all of `batch` for each workload in `names`; `stream` returns the stream for a name and a seed. The result
/// does not depend on the number of processors.
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
            done.lock().push((task, outcomes));
        }
    };
    thread::scope(|scope| {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        for _ in 0..processors.min(count) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner();
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
    let run_policy = |policy: &QueuePolicy| {
        let run = Run { policy: *policy, reading: batch.reading, seed };
        run_queue(stream, &run).map(|starts| outcome(stream, &starts))
    };
    batch.policies.iter().map(run_policy).collect()
}
