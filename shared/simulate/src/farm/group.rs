//! A group of the farm.

use std::collections::{BTreeMap, VecDeque};

use model::{Esu, ExecutorType, Governed, Occupancy};
use policy::{Allowance, GroupState};

use crate::{builds::Build, series::GroupSeries};

/// Builds that a hungry group has waiting, and the most that a dispatcher and the governor look at.
const HEAD: usize = 400;

/// A build that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) build: Build,
    /// When it started.
    pub(super) since: u64,
}

/// What there is of a group.
#[derive(Debug)]
pub(super) struct GroupFarm {
    pub(super) series: GroupSeries,
    pub(super) waiting: VecDeque<Build>,
    pub(super) allowance: Allowance,
    quota: Occupancy,
    running: BTreeMap<u64, Running>,
    in_progress: Occupancy,
    /// Since the last tick.
    watch: Watch,
    /// Usage that is not reported yet, and how often it was looked at.
    unreported: (f64, f64),
}

/// What the governor is told at its next tick.
#[derive(Debug, Default)]
struct Watch {
    began: u64,
    changed: u64,
    /// ESU of estimates in progress, times milliseconds.
    area: f64,
    peak: Esu,
    ended: Esu,
    /// Usage reports and their number.
    reports: (f64, f64),
    /// The mean of the last tick that had reports.
    pv: f64,
}

impl GroupFarm {
    /// Nothing starts before the first decision.
    pub(super) fn new(quota: Occupancy, series: GroupSeries) -> Self {
        Self {
            series,
            waiting: VecDeque::new(),
            allowance: Allowance::governed([(ExecutorType::x86(), Governed::default())].into()),
            quota,
            running: BTreeMap::new(),
            in_progress: Occupancy::default(),
            watch: Watch::default(),
            unreported: (0.0, 0.0),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < HEAD
    }

    pub(super) fn in_progress(&self) -> Esu {
        self.in_progress.get(&ExecutorType::x86())
    }

    pub(super) fn governed(&self) -> Governed {
        match &self.allowance {
            Allowance::Unlimited => Governed::default(),
            Allowance::Governed { types, .. } => types.get(&ExecutorType::x86()).copied().unwrap_or_default(),
        }
    }

    /// The places in the queue from which builds may start. Estimates are of one type, so they are the first ones.
    pub(super) fn startable(&self) -> VecDeque<u64> {
        let mut admission = self.allowance.admission(&self.in_progress);
        let goes = |build: &&Build| admission.consider(&build.estimate).is_ok();
        (0..).zip(self.waiting.iter().take_while(goes)).map(|(place, _)| place).collect()
    }

    pub(super) fn start(&mut self, id: u64, running: Running, now: u64) {
        self.change(&running.build.estimate, 1.0, now);
        self.running.insert(id, running);
    }

    pub(super) fn finish(&mut self, id: u64, now: u64) {
        if let Some(ended) = self.running.remove(&id) {
            self.change(&ended.build.estimate, -1.0, now);
            self.watch.ended = self.watch.ended + ended.build.estimate.get(&ExecutorType::x86());
        }
    }

    fn change(&mut self, estimate: &Occupancy, sign: f64, now: u64) {
        self.look(now);
        for (kind, amount) in self.allowance.counted(estimate).iter() {
            self.in_progress.add(kind, if sign < 0.0 { -amount } else { amount });
        }
        self.watch.peak = self.watch.peak.max(self.in_progress());
    }

    fn look(&mut self, now: u64) {
        self.watch.area += self.in_progress().units() * (now - self.watch.changed) as f64;
        self.watch.changed = now;
    }

    /// ESU in use now.
    pub(super) fn usage(&self, now: u64, ramp_seconds: f64) -> f64 {
        let of = |running: &Running| {
            let age = (now - running.since) as f64 / 1000.0;
            running.build.esu * if ramp_seconds > 0.0 { (age / ramp_seconds).min(1.0) } else { 1.0 }
        };
        self.running.values().map(of).fold(0.0, |sum, esu| sum + esu)
    }

    /// Takes note of the use, and reports the mean of what was noted when it is time.
    pub(super) fn report(&mut self, pv: f64, is_due: bool) {
        self.unreported = (self.unreported.0 + pv, self.unreported.1 + 1.0);
        if is_due {
            let (sum, count) = std::mem::take(&mut self.unreported);
            self.watch.reports = (self.watch.reports.0 + sum / count, self.watch.reports.1 + 1.0);
        }
    }

    /// What the governor is told, and a new watch.
    pub(super) fn state(&mut self, now: u64) -> GroupState {
        self.look(now);
        let of = |amount: f64| Occupancy::of_each([ExecutorType::x86()], Esu::clamped(amount));
        let span = (now - self.watch.began) as f64;
        let (sum, count) = self.watch.reports;
        let pv = if count > 0.0 { sum / count } else { self.watch.pv };
        let waiting: Esu = self.waiting.iter().map(|build| build.estimate.get(&ExecutorType::x86())).sum();
        let in_progress = self.in_progress();
        let state = GroupState {
            quota: self.quota.clone(),
            pv: of(pv),
            in_progress: of(if span > 0.0 { self.watch.area / span } else { in_progress.units() }),
            peak: of(self.watch.peak.max(in_progress).units()),
            ended: of(self.watch.ended.units()),
            waiting: of(waiting.units()),
            head: self.waiting.front().map(|build| build.estimate.clone()),
        };
        self.watch = Watch { began: now, changed: now, peak: in_progress, pv, ..Watch::default() };
        state
    }
}
