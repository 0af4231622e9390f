//! The jobs of a replay in the simulator.

use std::collections::{BTreeMap, BTreeSet};

use model::BandOrder;
use policy::requirements::matches;
use replay::{Estimation, Job, Start, Stream};
use simulate::queues::{QueuePolicy, Reading, Run, run_queue};

use super::outcome::Outcome;
use crate::error::BenchError;

/// Seed of the estimates, which the policies do not use.
pub(super) const SEED: u64 = 1;
/// The property that binds jobs to one kind of worker.
const KIND: &str = "bench-kind";

/// Simulates the stream with one queue in this order.
pub(super) fn outcome(stream: &Stream, order: BandOrder) -> Result<Outcome, BenchError> {
    let policy = QueuePolicy::One(order, Estimation::None);
    let starts = run_queue(stream, &Run { policy, reading: Reading::Text, seed: SEED });
    let starts = starts.map_err(|error| BenchError::usage("--replay", &error))?;
    let wait = |(job, start): (&Job, &Start)| start.start_ms.saturating_sub(job.arrival_ms) as f64;
    let ends =
        stream.jobs.iter().zip(&starts).map(|(job, start)| start.start_ms.saturating_add(job.duration_ms));
    let makespan_ms = ends.max().unwrap_or_default() as f64;
    Ok(Outcome { waits_ms: stream.jobs.iter().zip(&starts).map(wait).collect(), makespan_ms })
}

/// The same stream without alternatives: each job can run only on the kind of the first worker that can run it.
pub(super) fn apart(stream: &Stream) -> Stream {
    let mut stream = stream.clone();
    let mut kinds = BTreeMap::new();
    for worker in &mut stream.workers {
        let next = kinds.len().to_string();
        let kind = kinds.entry(worker.offers.clone()).or_insert(next);
        worker.offers.insert(KIND.to_owned(), [kind.clone()].into());
    }
    for asked in &mut stream.requirements {
        let fits = |offers: &BTreeMap<String, _>| {
            let asked = asked.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            matches(asked, |name| values(offers, name))
        };
        let first = stream.workers.iter().find(|worker| fits(&worker.offers));
        let kind = first.and_then(|worker| values(&worker.offers, KIND).next());
        if let Some(kind) = kind.map(str::to_owned) {
            asked.insert(KIND.to_owned(), kind);
        }
    }
    stream
}

fn values<'a>(
    offers: &'a BTreeMap<String, BTreeSet<String>>,
    name: &str,
) -> impl Iterator<Item = &'a str> + use<'a> {
    offers.get(name).into_iter().flatten().map(String::as_str)
}

#[cfg(test)]
mod tests {
    use simulate::queues::{read_trace, read_workers};

    use super::*;

    #[test]
    fn alternatives_are_what_differs() {
        let lines = "{\"arrival_ms\": 0, \"duration_ms\": 1000, \"requirements\": {\"hwgroup\": \"a|b\"}}\n";
        let mut stream = read_trace("two", &lines.repeat(2), SEED, Reading::Text).unwrap();
        let workers = "[{\"offers\": {\"hwgroup\": \"a\"}}, {\"offers\": {\"hwgroup\": \"b\"}}]";
        stream.workers = read_workers(workers).unwrap();
        let both = outcome(&stream, BandOrder::Fcfs).unwrap();
        assert_eq!((both.waits_ms, both.makespan_ms), (vec![0.0, 0.0], 1000.0));
        let one = outcome(&apart(&stream), BandOrder::Fcfs).unwrap();
        assert_eq!((one.waits_ms, one.makespan_ms), (vec![0.0, 1000.0], 2000.0));
    }
}
