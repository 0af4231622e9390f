//! Finds the least loaded of a thousand workers without visiting all of them.
//!
//! The loads of workers whose job is expected to end in the future all fall at the same rate, so their order stays
//! the same: they are stored by the time at which they would reach 0. When a job runs longer than expected, the load
//! of its worker stops falling.

use std::collections::BTreeSet;

use policy::queue::{WorkerLoad, least_loaded};
use replay::{Classes, Events};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadCurve {
    /// The load does not change over time.
    Fixed { load: u64, idle: bool },
    /// The load falls until the running job is expected to end.
    Running { queued: u64, expected_end_ms: u64 },
}

impl LoadCurve {
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
    ends: Events<u32>,
}

#[derive(Default)]
struct Site {
    idle: BTreeSet<u32>,
    /// Workers with a constant load, ordered by load.
    fixed: BTreeSet<(u64, u32)>,
    /// Workers with a falling load, ordered by the time at which the load would be 0.
    falling: BTreeSet<(u64, u32)>,
}

struct Entry {
    site: usize,
    curve: LoadCurve,
    /// Whether the worker is stored in `falling`.
    falling: bool,
}

impl LoadIndex {
    /// Creates an index of these workers, numbered from 0.
    pub(super) fn of(classes: &Classes, workers: impl Iterator<Item = (u32, LoadCurve)>) -> Self {
        let mut sites = Vec::new();
        sites.resize_with(classes.sites(), Site::default);
        let mut index = Self { sites, workers: Vec::new(), ends: Events::default() };
        for (number, curve) in workers {
            index.workers.push(Entry { site: classes.site(number), curve, falling: false });
            index.update_site(number, true);
        }
        index
    }

    /// Sets the load of a worker.
    pub(super) fn set(&mut self, worker: u32, curve: LoadCurve) {
        self.update_site(worker, false);
        let Some(entry) = self.workers.get_mut(worker as usize) else {
            unreachable!("worker {worker} is not in the index");
        };
        entry.curve = curve;
        entry.falling = matches!(curve, LoadCurve::Running { .. });
        if let LoadCurve::Running { expected_end_ms, .. } = curve {
            self.ends.push(expected_end_ms, worker);
        }
        self.update_site(worker, true);
    }

    /// Returns the least loaded worker of these sites.
    pub(super) fn least(&mut self, sites: impl Iterator<Item = usize>, now: u64) -> Option<u32> {
        self.fix_overdue_loads(now);
        let heads = sites.filter_map(|site| self.sites.get(site)).flat_map(|site| {
            [
                site.idle.first().copied(),
                site.fixed.first().map(|(_, worker)| *worker),
                site.falling.first().map(|(_, worker)| *worker),
            ]
        });
        let load = |worker: u32| Some(self.workers.get(worker as usize)?.curve.load(worker, now));
        least_loaded(heads.flatten().filter_map(load))
    }

    /// Moves workers whose job should have ended by now to the constant loads.
    fn fix_overdue_loads(&mut self, now: u64) {
        while let Some((end, worker)) = self.ends.pop_if(|end| end < now) {
            let Some(entry) = self.workers.get(worker as usize) else {
                unreachable!("worker {worker} is not in the index");
            };
            // The worker may run another job by now.
            let still =
                matches!(entry.curve, LoadCurve::Running { expected_end_ms, .. } if expected_end_ms == end);
            if still && entry.falling {
                self.update_site(worker, false);
                if let Some(entry) = self.workers.get_mut(worker as usize) {
                    entry.falling = false;
                }
                self.update_site(worker, true);
            }
        }
    }

    /// Adds a worker to the set of its site, or removes it.
    fn update_site(&mut self, worker: u32, there: bool) {
        let Some(entry) = self.workers.get(worker as usize) else {
            unreachable!("worker {worker} is not in the index");
        };
        let Some(site) = self.sites.get_mut(entry.site) else {
            unreachable!("worker {worker} has no site");
        };
        let (set, value) = match entry.curve {
            LoadCurve::Fixed { idle: true, .. } => {
                if there {
                    site.idle.insert(worker);
                } else {
                    site.idle.remove(&worker);
                }
                return;
            }
            LoadCurve::Fixed { load, idle: false } => (&mut site.fixed, load),
            LoadCurve::Running { queued, expected_end_ms } if entry.falling => {
                (&mut site.falling, queued.saturating_add(expected_end_ms))
            }
            LoadCurve::Running { queued, .. } => (&mut site.fixed, queued),
        };
        if there {
            set.insert((value, worker));
        } else {
            set.remove(&(value, worker));
        }
    }
}
