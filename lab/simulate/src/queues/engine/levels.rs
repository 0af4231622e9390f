//! One queue whose levels of expected run time take turns, by the function that the index of actions uses.

use std::{cmp::Reverse, collections::BinaryHeap};

use model::Priority;
use policy::queue::Levels;

use super::{Dispatch, classes::Classes, one::IdleWorkers};
use crate::queues::{
    name::Estimation,
    stream::{Job, Stream},
};

/// A job's position: priority, start tag, number.
type Place = Reverse<(Priority, u64, u32)>;

pub(super) struct LeveledQueue<'a> {
    jobs: &'a [Job],
    classes: &'a Classes,
    estimation: Estimation,
    levels: Levels,
    /// Waiting jobs of each demand.
    waiting: Vec<BinaryHeap<Place>>,
    idle: IdleWorkers,
}

impl<'a> LeveledQueue<'a> {
    pub(super) fn new(stream: &'a Stream, classes: &'a Classes, estimation: Estimation) -> Self {
        Self {
            jobs: &stream.jobs,
            classes,
            estimation,
            levels: Levels::default(),
            waiting: vec![BinaryHeap::new(); classes.demands()],
            idle: IdleWorkers::all(classes, stream.workers.len()),
        }
    }
}

impl Dispatch for LeveledQueue<'_> {
    fn arrive(&mut self, number: u32, _now: u64) -> Option<u32> {
        let demand = self.classes.demand(number);
        if let Some(worker) = self.idle.take(self.classes, demand) {
            return Some(worker);
        }
        let job = self.jobs.get(number as usize)?;
        let tag = self.levels.wait(job.estimate(self.estimation));
        self.waiting.get_mut(demand)?.push(Reverse((job.priority, tag, number)));
        None
    }

    fn free(&mut self, worker: u32, _now: u64) -> Option<u32> {
        let demands = self.classes.demands_at(self.classes.site(worker));
        // The greatest of reversed places is the first.
        let first = demands
            .iter()
            .filter_map(|demand| self.waiting.get(*demand as usize)?.peek().map(|place| (*place, *demand)))
            .max();
        let Some((_, demand)) = first else {
            self.idle.add(self.classes, worker);
            return None;
        };
        let Reverse((_, tag, job)) = self.waiting.get_mut(demand as usize)?.pop()?;
        self.levels.start(tag);
        if self.waiting.iter().all(BinaryHeap::is_empty) {
            // As in the index: all tags are forgotten when nothing waits.
            self.levels = Levels::default();
        }
        Some(job)
    }
}
