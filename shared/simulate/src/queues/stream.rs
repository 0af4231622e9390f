//! Jobs and workers.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use model::Priority;
use policy::requirements::matches;

/// A job of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// When it comes, milliseconds since the start.
    pub arrival_ms: u64,
    /// How long a worker is busy with it, milliseconds.
    pub duration_ms: u64,
    /// How long an imprecise estimator takes it for, milliseconds.
    pub estimate_ms: u64,
    /// Jobs of a higher priority start first, whatever the order.
    pub priority: Priority,
    /// What it asks for: an index into [`Stream::requirements`].
    pub requirements: u32,
    /// What sort it is: an index into [`Stream::kinds`].
    pub kind: u32,
}

/// Jobs in order of arrival, and the workers to run them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stream {
    /// Its name: that of the workload.
    pub name: String,
    /// The jobs, earlier ones first.
    pub jobs: Vec<Job>,
    /// What jobs ask for, each once.
    pub requirements: Vec<BTreeMap<String, String>>,
    /// Names of sorts of jobs, each once.
    pub kinds: Vec<String>,
    /// The workers, by number.
    pub workers: Vec<Worker>,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Its name.
    pub name: String,
    /// What it has, by name: each value is an alternative.
    pub offers: BTreeMap<String, BTreeSet<String>>,
}

/// A stream that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStream {
    /// No workers.
    #[error("there are no workers")]
    NoWorkers,
    /// A requirement that no worker meets.
    #[error("job {job} asks for {asked}, which no worker has; on offer: {offered}")]
    Unmet {
        /// The job's place in the stream, from 1.
        job: usize,
        /// What it asks for.
        asked: String,
        /// What workers have, by the same names.
        offered: String,
    },
}

/// Makes each value be kept once, and gives its number.
#[derive(Debug, Default)]
pub(crate) struct Interner<T>(HashMap<T, u32>);

impl<T: std::hash::Hash + Eq + Clone> Interner<T> {
    /// The number of `value` in `known`, where it is added when it is new.
    pub(crate) fn number(&mut self, value: &T, known: &mut Vec<T>) -> u32 {
        if let Some(number) = self.0.get(value) {
            return *number;
        }
        let number = u32::try_from(known.len()).unwrap_or(u32::MAX);
        known.push(value.clone());
        self.0.insert(value.clone(), number);
        number
    }
}

impl Stream {
    /// For each set of requirements, the numbers of the workers that meet it; refuses what none meets.
    pub(crate) fn able(&self) -> Result<Vec<Vec<u32>>, InvalidStream> {
        if self.workers.is_empty() {
            return Err(InvalidStream::NoWorkers);
        }
        let able: Vec<Vec<u32>> = self
            .requirements
            .iter()
            .map(|asked| {
                let fits = |(_, worker): &(u32, &Worker)| matches(asked, &worker.offers);
                (0..).zip(&self.workers).filter(fits).map(|(number, _)| number).collect()
            })
            .collect();
        let unmet = |job: &Job| able.get(job.requirements as usize).is_none_or(Vec::is_empty);
        match self.jobs.iter().position(unmet) {
            None => Ok(able),
            Some(job) => Err(self.unmet(job)),
        }
    }

    fn unmet(&self, job: usize) -> InvalidStream {
        let asked = self.jobs.get(job).and_then(|job| self.requirements.get(job.requirements as usize));
        let asked = asked.cloned().unwrap_or_default();
        let mut offers: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (name, values) in self.workers.iter().flat_map(|worker| &worker.offers) {
            if asked.contains_key(name) {
                offers.entry(name).or_default().extend(values.iter().map(String::as_str));
            }
        }
        let pairs = asked.iter().map(|(name, value)| format!("{name}={value}"));
        let offered = asked.keys().map(|name| {
            let values = offers.get(name.as_str()).map(|values| values.iter().copied().collect::<Vec<_>>());
            values.map_or_else(|| format!("no {name}"), |values| format!("{name}={}", values.join(", ")))
        });
        InvalidStream::Unmet {
            job: job + 1,
            asked: pairs.collect::<Vec<_>>().join(" "),
            offered: offered.collect::<Vec<_>>().join("; "),
        }
    }
}
