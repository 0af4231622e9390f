//! One queue: an arriving job starts on the first idle worker that can run it, or else waits; a worker that becomes
//! free starts the first job that it can run.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
};

use model::{BandOrder, Priority};
use policy::queue::{Levels, OrderKey, Waiting, order_key};

use crate::{
    classes::Classes,
    run::{Dispatch, Start, Ties, drive},
    stream::{Estimation, InvalidStream, Job, Stream},
};

/// A job's position: priority, then the key of the order. Of equal keys, the first job to arrive goes first.
type Place<K> = Reverse<(Priority, K, u32)>;

/// Runs `stream` through a single queue for all workers and returns the start of each job, in the order of the stream.
pub fn one_queue(
    stream: &Stream,
    ties: Ties,
    order: impl Order,
    estimation: Estimation,
) -> Result<Vec<Start>, InvalidStream> {
    let classes = Classes::of(stream)?;
    Ok(drive(stream, ties, &mut One::new(stream, &classes, order, estimation)))
}

/// Gives waiting jobs their keys: the lowest starts first.
pub trait Order {
    type Key: Ord + Copy;

    /// The key of a job that begins to wait.
    fn wait(&mut self, waiting: &Waiting) -> Self::Key;

    /// Notes that a waiting job with this key starts; `is_last` if no other waits.
    fn start(&mut self, key: Self::Key, is_last: bool);
}

impl Order for BandOrder {
    type Key = OrderKey;

    fn wait(&mut self, waiting: &Waiting) -> OrderKey {
        order_key(*self, waiting)
    }

    fn start(&mut self, _key: OrderKey, _is_last: bool) {}
}

/// The levels take turns, by the function that the index of actions uses.
impl Order for Levels {
    type Key = u64;

    fn wait(&mut self, waiting: &Waiting) -> u64 {
        Self::wait(self, waiting.estimate_ms)
    }

    fn start(&mut self, tag: u64, is_last: bool) {
        Self::start(self, tag);
        if is_last {
            // As in the index: all tags are forgotten when nothing waits.
            *self = Self::default();
        }
    }
}

struct One<'a, O: Order> {
    jobs: &'a [Job],
    classes: &'a Classes,
    order: O,
    estimation: Estimation,
    /// Waiting jobs of each demand.
    waiting: Vec<BinaryHeap<Place<O::Key>>>,
    idle: IdleWorkers,
}

/// Idle workers of each site.
#[derive(Debug)]
pub struct IdleWorkers(Vec<BTreeSet<u32>>);

impl IdleWorkers {
    /// Creates the set with all workers idle.
    pub fn all(classes: &Classes, workers: usize) -> Self {
        let mut idle = Self(vec![BTreeSet::new(); classes.sites()]);
        for worker in (0..).take(workers) {
            idle.add(classes, worker);
        }
        idle
    }

    /// Adds a worker that became idle.
    pub fn add(&mut self, classes: &Classes, worker: u32) {
        let Some(idle) = self.0.get_mut(classes.site(worker)) else {
            unreachable!("worker {worker} has no site");
        };
        idle.insert(worker);
    }

    /// Removes and returns the first worker that can run `demand`.
    pub fn take(&mut self, classes: &Classes, demand: usize) -> Option<u32> {
        let heads = classes.sites_for(demand).filter_map(|site| self.0.get(site)?.first().copied());
        let worker = heads.min()?;
        self.0.get_mut(classes.site(worker))?.pop_first()
    }
}

impl<'a, O: Order> One<'a, O> {
    fn new(stream: &'a Stream, classes: &'a Classes, order: O, estimation: Estimation) -> Self {
        let waiting = (0..classes.demands()).map(|_| BinaryHeap::new()).collect();
        Self {
            jobs: &stream.jobs,
            classes,
            order,
            estimation,
            waiting,
            idle: IdleWorkers::all(classes, stream.workers.len()),
        }
    }
}

/// Returns the part of a waiting job that a policy sees.
pub fn waiting_job(classes: &Classes, number: u32, job: &Job, estimation: Estimation) -> Waiting {
    let able = classes.workers_for(classes.demand(number)).len();
    Waiting {
        position: u64::from(number),
        arrived_ms: job.arrival_ms,
        estimate_ms: job.estimate(estimation),
        flexibility: u32::try_from(able).unwrap_or(u32::MAX),
    }
}

impl<O: Order> Dispatch for One<'_, O> {
    fn arrive(&mut self, number: u32, _now: u64) -> Option<u32> {
        let demand = self.classes.demand(number);
        if let Some(worker) = self.idle.take(self.classes, demand) {
            return Some(worker);
        }
        let job = self.jobs.get(number as usize)?;
        let key = self.order.wait(&waiting_job(self.classes, number, job, self.estimation));
        self.waiting.get_mut(demand)?.push(Reverse((job.priority, key, number)));
        None
    }

    fn free(&mut self, worker: u32, _now: u64) -> Option<u32> {
        let demands = self.classes.demands_at(self.classes.site(worker));
        // The greatest of reversed places is the first.
        let first = demands
            .iter()
            .filter_map(|demand| self.waiting.get(*demand as usize)?.peek().map(|place| (*place, *demand)))
            .max();
        match first {
            None => {
                self.idle.add(self.classes, worker);
                None
            }
            Some((_, demand)) => {
                let Reverse((_, key, job)) = self.waiting.get_mut(demand as usize)?.pop()?;
                self.order.start(key, self.waiting.iter().all(BinaryHeap::is_empty));
                Some(job)
            }
        }
    }
}
