//! Streams of jobs and their workers.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use model::Priority;
use policy::{queue::UNKNOWN_ESTIMATE_MS, requirements::matches};

use crate::recorder::RecordedBuild;

/// A job of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Arrival in milliseconds since the start.
    pub arrival_ms: u64,
    /// Time that a worker is busy with the job, in milliseconds.
    pub duration_ms: u64,
    /// Duration that an imprecise estimator assumes, in milliseconds.
    pub estimate_ms: u64,
    /// Jobs of a higher priority start first, whatever the order.
    pub priority: Priority,
    /// Requirements of the job: an index into [`Stream::requirements`].
    pub requirements: u32,
    /// Kind of the job: an index into [`Stream::kinds`].
    pub kind: u32,
}

/// A policy's knowledge of job durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Estimation {
    /// The policy does not use durations.
    None,
    /// All jobs count as equally long.
    QueueSize,
    /// The true duration of each job.
    Oracle,
    /// The duration that an imprecise estimator assumes.
    Imprecise,
}

impl Job {
    /// Duration that a policy assumes: milliseconds, or 1 where all jobs count as equally long.
    pub fn estimate(&self, estimation: Estimation) -> u64 {
        match estimation {
            Estimation::None | Estimation::QueueSize => 1,
            Estimation::Oracle => self.duration_ms,
            Estimation::Imprecise => self.estimate_ms,
        }
    }
}

/// Jobs in order of arrival, and the workers that run them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stream {
    /// Name of the stream: that of the workload.
    pub name: String,
    /// The jobs in order of arrival.
    pub jobs: Vec<Job>,
    /// Distinct sets of requirements of the jobs.
    pub requirements: Vec<BTreeMap<String, String>>,
    /// Distinct names of kinds of jobs.
    pub kinds: Vec<String>,
    /// Workers; a worker's number is its index.
    pub workers: Vec<Worker>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    pub name: String,
    /// Properties of the worker: each value of a name is an alternative.
    pub offers: BTreeMap<String, BTreeSet<String>>,
}

/// Reason why a stream cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStream {
    #[error("the stream has no workers")]
    NoWorkers,
    /// No worker meets a requirement.
    #[error("job {job} requires {asked}, which no worker offers; on offer: {offered}")]
    Unmet {
        /// Position of the job in the stream, from 1.
        job: usize,
        asked: String,
        /// Values that workers have for the same names.
        offered: String,
    },
}

/// Stores each value once and assigns it a number.
#[derive(Debug, Default)]
pub struct Interner<T>(HashMap<T, u32>);

impl<T: std::hash::Hash + Eq + Clone> Interner<T> {
    /// Returns the number of `value`, which is appended to `known` if it is new.
    pub fn number(&mut self, value: &T, known: &mut Vec<T>) -> u32 {
        if let Some(number) = self.0.get(value) {
            return *number;
        }
        let number = u32::try_from(known.len()).unwrap_or(u32::MAX);
        known.push(value.clone());
        self.0.insert(value.clone(), number);
        number
    }
}

/// Returns `count` equal workers that meet all of `requirements`.
pub fn alike_workers(count: u64, requirements: &[BTreeMap<String, String>]) -> Vec<Worker> {
    let mut offers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, value) in requirements.iter().flatten() {
        let values = offers.entry(name.clone()).or_default();
        // Each alternative of a hardware group is a separate value.
        values.extend(value.split('|').map(|value| value.trim().to_owned()));
        values.insert(value.clone());
    }
    let worker = |number| Worker { name: format!("worker_{number}"), offers: offers.clone() };
    (1..=count).map(worker).collect()
}

impl Stream {
    /// The builds as jobs, without workers. A build without an estimate gets the one that the dispatcher uses for it.
    pub fn of_builds(name: &str, builds: &[RecordedBuild]) -> Self {
        let mut stream = Self { name: name.to_owned(), ..Self::default() };
        let (mut kinds, mut requirements) = (Interner::default(), Interner::default());
        for build in builds {
            stream.jobs.push(Job {
                arrival_ms: build.arrival_ms,
                duration_ms: build.duration_ms,
                estimate_ms: build.estimate_ms.unwrap_or(UNKNOWN_ESTIMATE_MS),
                priority: build.priority,
                requirements: requirements.number(&build.requirements, &mut stream.requirements),
                kind: kinds.number(&build.kind, &mut stream.kinds),
            });
        }
        stream
    }

    /// Returns the numbers of the able workers for each set of requirements; fails if no worker is able.
    pub(crate) fn able(&self) -> Result<Vec<Vec<u32>>, InvalidStream> {
        if self.workers.is_empty() {
            return Err(InvalidStream::NoWorkers);
        }
        let able: Vec<Vec<u32>> = self
            .requirements
            .iter()
            .map(|asked| {
                let asked = || asked.iter().map(|(name, value)| (name.as_str(), value.as_str()));
                let fits = |(_, worker): &(u32, &Worker)| {
                    matches(asked(), |name| worker.offers.get(name).into_iter().flatten().map(String::as_str))
                };
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
