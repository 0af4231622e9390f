//! One queue as implemented for the published figures: all waiting jobs are sorted again whenever a worker becomes
//! free, by an unstable sort. Several policies have many equal keys, and the order of equals shows in the figures.

use std::cmp::Reverse;

use model::{BandOrder, Priority};
use policy::queue::deadline_ms;
use replay::{Classes, Dispatch, Estimation, IdleWorkers, Job, Stream, waiting_job};

use crate::queues::introsort;

/// Sort key of a waiting job.
type Key = (Priority, u64, Reverse<u64>);

pub(super) struct Sorted<'a> {
    jobs: &'a [Job],
    classes: &'a Classes,
    order: BandOrder,
    estimation: Estimation,
    waiting: Vec<(Key, u32)>,
    idle: IdleWorkers,
}

impl<'a> Sorted<'a> {
    pub(super) fn new(
        stream: &'a Stream,
        classes: &'a Classes,
        order: BandOrder,
        estimation: Estimation,
    ) -> Self {
        let idle = IdleWorkers::all(classes, stream.workers.len());
        Self { jobs: &stream.jobs, classes, order, estimation, waiting: Vec::new(), idle }
    }

    fn key(&self, number: u32, job: &Job) -> Key {
        let waiting = waiting_job(self.classes, number, job, self.estimation);
        let (first, longest) = match self.order {
            BandOrder::Fcfs => (waiting.arrived_ms, 0),
            BandOrder::Spt => (waiting.estimate_ms, 0),
            BandOrder::Edf => (deadline_ms(waiting.arrived_ms, waiting.estimate_ms), 0),
            // The label was a worker's index in a list, the same for all jobs: flexibility and length remain.
            BandOrder::Oagm => (u64::from(waiting.flexibility), waiting.estimate_ms),
            BandOrder::LeastFlex => (u64::from(waiting.flexibility), 0),
            BandOrder::SptAged => (policy::queue::aged_ms(waiting.arrived_ms, waiting.estimate_ms), 0),
        };
        (job.priority, first, Reverse(longest))
    }
}

impl Dispatch for Sorted<'_> {
    fn arrive(&mut self, number: u32, _now: u64) -> Option<u32> {
        if let Some(worker) = self.idle.take(self.classes, self.classes.demand(number)) {
            return Some(worker);
        }
        let key = self.key(number, self.jobs.get(number as usize)?);
        self.waiting.push((key, number));
        None
    }

    fn free(&mut self, worker: u32, _now: u64) -> Option<u32> {
        introsort::sort(&mut self.waiting);
        let met = self.classes.demands_at(self.classes.site(worker));
        let can_run =
            |(_, job): &(Key, u32)| met.iter().any(|demand| *demand as usize == self.classes.demand(*job));
        match self.waiting.iter().position(can_run) {
            None => {
                self.idle.add(self.classes, worker);
                None
            }
            Some(place) => Some(self.waiting.remove(place).1),
        }
    }
}
