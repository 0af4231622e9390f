//! Finds the least loaded of a thousand workers without visiting all of them.
//!
//! The loads of workers whose job is expected to end in the future all fall at the same rate, so their order stays
//! the same: they are stored by the time at which they would reach 0. When a job runs longer than expected, the load
//! of its worker stops falling.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
};

use policy::queue::{WorkerLoad, least_loaded};

use super::classes::Classes;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The load does not change over time.
    Fixed { load: u64, idle: bool },
    /// The load falls until the running job is expected to end.
    Running { queued: u64, expected_end_ms: u64 },
}

impl Standing {
    /// Returns the load of worker `number` at `now`.
    pub(super) fn load(self, number: u32, now: u64) -> WorkerLoad {
        match self {
            Self::Fixed { load, idle } => WorkerLoad { number, idle, load },
            Self::Running { queued, expected_end_ms } => {
                let load = queued.saturating_add(expected_end_ms.saturating_sub(now));
                WorkerLoad { number, idle: false, load }
            }
        }
    }
}

/// Workers ordered by load, separately for each site.
pub(super) struct LoadIndex {
    sites: Vec<Site>,
    workers: Vec<Entry>,
    /// Expected ends of jobs, at which a load stops falling.
    ends: BinaryHeap<Reverse<(u64, u32)>>,
}

#[derive(Default)]
struct Site {
    idle: BTreeSet<u32>,
    /// Workers with a constant load, ordered by load.
    fixed: BTreeSet<(u64, u32)>,
    /// Workers with a falling load, ordered by the time at which the load would be 0.
    sinking: BTreeSet<(u64, u32)>,
}

struct Entry {
    site: usize,
    standing: Standing,
    /// Whether the worker is stored in `sinking`.
    sinking: bool,
}

impl LoadIndex {
    /// Creates an index of these workers, numbered from 0.
    pub(super) fn of(classes: &Classes, workers: impl Iterator<Item = (u32, Standing)>) -> Self {
        let mut sites = Vec::new();
        sites.resize_with(classes.sites(), Site::default);
        let mut index = Self { sites, workers: Vec::new(), ends: BinaryHeap::new() };
        for (number, standing) in workers {
            index.workers.push(Entry { site: classes.site(number), standing, sinking: false });
            index.keep(number, true);
        }
        index
    }

    /// Sets the load of a worker.
    pub(super) fn set(&mut self, worker: u32, standing: Standing) {
        self.keep(worker, false);
        let Some(entry) = self.workers.get_mut(worker as usize) else { return };
        entry.standing = standing;
        entry.sinking = matches!(standing, Standing::Running { .. });
        if let Standing::Running { expected_end_ms, .. } = standing {
            self.ends.push(Reverse((expected_end_ms, worker)));
        }
        self.keep(worker, true);
    }

    /// Returns the least loaded worker of these sites.
    pub(super) fn least(&mut self, sites: impl Iterator<Item = usize>, now: u64) -> Option<u32> {
        self.settle(now);
        let heads = sites.filter_map(|site| self.sites.get(site)).flat_map(|site| {
            [
                site.idle.first().copied(),
                site.fixed.first().map(|(_, worker)| *worker),
                site.sinking.first().map(|(_, worker)| *worker),
            ]
        });
        let load = |worker: u32| Some(self.workers.get(worker as usize)?.standing.load(worker, now));
        least_loaded(heads.flatten().filter_map(load))
    }

    /// Moves workers whose job should have ended by now to the constant loads.
    fn settle(&mut self, now: u64) {
        while let Some(Reverse((end, worker))) =
            self.ends.peek().copied().filter(|Reverse((end, _))| *end < now)
        {
            self.ends.pop();
            let Some(entry) = self.workers.get(worker as usize) else { continue };
            // The worker may run another job by now.
            let still =
                matches!(entry.standing, Standing::Running { expected_end_ms, .. } if expected_end_ms == end);
            if still && entry.sinking {
                self.keep(worker, false);
                if let Some(entry) = self.workers.get_mut(worker as usize) {
                    entry.sinking = false;
                }
                self.keep(worker, true);
            }
        }
    }

    /// Adds a worker to the set of its site, or removes it.
    fn keep(&mut self, worker: u32, there: bool) {
        let Some(entry) = self.workers.get(worker as usize) else { return };
        let Some(site) = self.sites.get_mut(entry.site) else { return };
        let (set, value) = match entry.standing {
            Standing::Fixed { idle: true, .. } => {
                if there {
                    site.idle.insert(worker);
                } else {
                    site.idle.remove(&worker);
                }
                return;
            }
            Standing::Fixed { load, idle: false } => (&mut site.fixed, load),
            Standing::Running { queued, expected_end_ms } if entry.sinking => {
                (&mut site.sinking, queued.saturating_add(expected_end_ms))
            }
            Standing::Running { queued, .. } => (&mut site.fixed, queued),
        };
        if there {
            set.insert((value, worker));
        } else {
            set.remove(&(value, worker));
        }
    }
}
