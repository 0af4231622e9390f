//! One queue per worker: a job is assigned to a worker when it arrives, and stays there.

use std::collections::{BTreeSet, VecDeque};

use policy::{
    Random,
    queue::{Spread, Turn, WorkerLoad, less_loaded, next_in_turn, two_of},
};
use replay::{Classes, Dispatch, Estimation, Job, Stream};

use super::{
    Run,
    load_index::{LoadCurve, LoadIndex},
};
use crate::{queues::name::Reading, random};

pub(super) struct Each<'a> {
    jobs: &'a [Job],
    classes: &'a Classes,
    estimation: Estimation,
    reading: Reading,
    workers: Vec<WorkerJobs>,
    choice: Choice,
}

/// The jobs of one worker.
#[derive(Debug, Clone, Default)]
struct WorkerJobs {
    running: bool,
    /// Expected end of the running job.
    expected_end_ms: u64,
    queue: VecDeque<u32>,
    /// Total expected duration of the queued jobs: milliseconds, or the number of jobs.
    queued: u64,
}

/// Rule by which a worker is chosen.
enum Choice {
    /// Round robin: the workers of each site ordered by their last turn, and the number of turns so far.
    Turn {
        sites: Vec<BTreeSet<(u64, u32)>>,
        last: Vec<u64>,
        turns: u64,
    },
    Least(LoadIndex),
    Two(Random),
}

impl<'a> Each<'a> {
    pub(super) fn new(
        stream: &'a Stream,
        classes: &'a Classes,
        (spread, estimation): (Spread, Estimation),
        run: &Run,
    ) -> Self {
        let workers = vec![WorkerJobs::default(); stream.workers.len()];
        let numbers = || (0_u32..).take(workers.len());
        let choice = match spread {
            Spread::RoundRobin => {
                let mut sites = vec![BTreeSet::new(); classes.sites()];
                for worker in numbers() {
                    let Some(site) = sites.get_mut(classes.site(worker)) else {
                        unreachable!("worker {worker} has no site");
                    };
                    site.insert((0, worker));
                }
                Choice::Turn { sites, last: vec![0; workers.len()], turns: 0 }
            }
            Spread::Load => {
                let index = LoadIndex::of(
                    classes,
                    numbers()
                        .map(|worker| (worker, load_curve(&WorkerJobs::default(), estimation, run.reading))),
                );
                Choice::Least(index)
            }
            Spread::Rand2 => Choice::Two(random::stream(run.seed, &stream.name, "rand2")),
        };
        Self { jobs: &stream.jobs, classes, estimation, reading: run.reading, workers, choice }
    }

    fn choose(&mut self, demand: usize, now: u64) -> Option<u32> {
        let (estimation, reading) = (self.estimation, self.reading);
        match &mut self.choice {
            Choice::Turn { sites, last, turns } => {
                let heads = self.classes.sites_for(demand).filter_map(|site| sites.get(site)?.first());
                let worker = next_in_turn(heads.map(|(last, number)| Turn { number: *number, last: *last }))?;
                let site = sites.get_mut(self.classes.site(worker))?;
                let last = last.get_mut(worker as usize)?;
                *turns += 1;
                site.remove(&(*last, worker));
                *last = *turns;
                site.insert((*last, worker));
                Some(worker)
            }
            Choice::Least(index) => index.least(self.classes.sites_for(demand), now),
            Choice::Two(random) => {
                let able = self.classes.workers_for(demand);
                let Some((a, b)) = two_of(able.len(), random) else { return able.first().copied() };
                let load = |at: usize| {
                    let number = *able.get(at)?;
                    Some(
                        load_curve(self.workers.get(number as usize)?, estimation, reading).load(number, now),
                    )
                };
                let (a, b): (WorkerLoad, WorkerLoad) = (load(a)?, load(b)?);
                Some(match reading {
                    Reading::Text => less_loaded(a, b).number,
                    // Strictly less, else the second.
                    Reading::Code if a.load < b.load => a.number,
                    Reading::Code => b.number,
                })
            }
        }
    }

    /// Updates the index after a change of a worker.
    fn update_index(&mut self, worker: u32) {
        let (estimation, reading) = (self.estimation, self.reading);
        if let (Choice::Least(index), Some(worker_jobs)) =
            (&mut self.choice, self.workers.get(worker as usize))
        {
            index.set(worker, load_curve(worker_jobs, estimation, reading));
        }
    }

    fn begin(&mut self, worker: u32, job: u32, now: u64) -> Option<()> {
        let estimate = self.jobs.get(job as usize)?.estimate(self.estimation);
        let worker_jobs = self.workers.get_mut(worker as usize)?;
        worker_jobs.running = true;
        worker_jobs.expected_end_ms = now.saturating_add(estimate);
        Some(())
    }
}

/// Returns a worker's load and how it changes with time.
fn load_curve(worker_jobs: &WorkerJobs, estimation: Estimation, reading: Reading) -> LoadCurve {
    match (reading, estimation) {
        // The running job was not counted, so an idle worker looked the same as a busy one.
        (Reading::Code, _) => LoadCurve::Fixed { load: worker_jobs.queued, idle: false },
        (Reading::Text, _) if !worker_jobs.running => LoadCurve::Fixed { load: 0, idle: true },
        (Reading::Text, Estimation::None | Estimation::QueueSize) => {
            LoadCurve::Fixed { load: worker_jobs.queued.saturating_add(1), idle: false }
        }
        (Reading::Text, Estimation::Oracle | Estimation::Imprecise) => {
            LoadCurve::Running { queued: worker_jobs.queued, expected_end_ms: worker_jobs.expected_end_ms }
        }
    }
}

impl Dispatch for Each<'_> {
    fn arrive(&mut self, job: u32, now: u64) -> Option<u32> {
        let worker = self.choose(self.classes.demand(job), now)?;
        let estimate = self.jobs.get(job as usize)?.estimate(self.estimation);
        let worker_jobs = self.workers.get_mut(worker as usize)?;
        let starts = !worker_jobs.running;
        if starts {
            self.begin(worker, job, now)?;
        } else {
            worker_jobs.queue.push_back(job);
            worker_jobs.queued = worker_jobs.queued.saturating_add(estimate);
        }
        self.update_index(worker);
        starts.then_some(worker)
    }

    fn free(&mut self, worker: u32, now: u64) -> Option<u32> {
        let worker_jobs = self.workers.get_mut(worker as usize)?;
        worker_jobs.running = false;
        let next = worker_jobs.queue.pop_front();
        if let Some(job) = next {
            let estimate = self.jobs.get(job as usize)?.estimate(self.estimation);
            worker_jobs.queued = worker_jobs.queued.saturating_sub(estimate);
            self.begin(worker, job, now)?;
        }
        self.update_index(worker);
        next
    }
}
