//! A quota group of the simulated farm.

use std::collections::{BTreeMap, VecDeque};

use model::{Esu, ExecutorType, Governed, Occupancy};
use policy::{Allowance, GroupState};

use crate::{builds::Build, series::GroupSeries};

/// Number of queued builds of a hungry group, and maximum number that a dispatcher and the governor consider.
const HEAD: usize = 400;

#[derive(Debug)]
pub(super) struct Running {
    pub(super) build: Build,
    /// Start time in milliseconds.
    pub(super) since: u64,
}

/// The builds and measurements of a group.
#[derive(Debug)]
pub(super) struct SimulatedGroup {
    pub(super) series: GroupSeries,
    pub(super) waiting: VecDeque<Build>,
    pub(super) allowance: Allowance,
    quota: Occupancy,
    running: BTreeMap<u64, Running>,
    in_progress: Occupancy,
    /// Measurements since the last tick.
    measurements: TickMeasurements,
    /// Sum of the usage samples that are not reported yet, and their number.
    unreported: (f64, f64),
}

/// Measurements for the next tick of the governor.
#[derive(Debug, Default)]
struct TickMeasurements {
    began: u64,
    changed: u64,
    /// ESU of estimates in progress, times milliseconds.
    area: f64,
    peak: Esu,
    ended: Esu,
    /// Sum of the usage reports and their number.
    reports: (f64, f64),
    /// Mean usage of the last tick that had reports.
    pv: f64,
}

impl SimulatedGroup {
    /// Creates the group; its allowance is zero until the first decision.
    pub(super) fn new(quota: Occupancy, series: GroupSeries) -> Self {
        Self {
            series,
            waiting: VecDeque::new(),
            allowance: Allowance::governed([(ExecutorType::x86(), Governed::default())].into()),
            quota,
            running: BTreeMap::new(),
            in_progress: Occupancy::default(),
            measurements: TickMeasurements::default(),
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

    /// Queue positions from which builds may start. All estimates are of one type, so these are the first positions.
    pub(super) fn startable(&self) -> VecDeque<u64> {
        let mut admission = self.allowance.admission(&self.in_progress);
        let may_start = |build: &&Build| admission.consider(&build.estimate).is_ok();
        (0..).zip(self.waiting.iter().take_while(may_start)).map(|(place, _)| place).collect()
    }

    pub(super) fn start(&mut self, id: u64, running: Running, now: u64) {
        self.change(&running.build.estimate, 1.0, now);
        self.running.insert(id, running);
    }

    pub(super) fn finish(&mut self, id: u64, now: u64) {
        let Some(ended) = self.running.remove(&id) else {
            unreachable!("build {id} does not run");
        };
        self.change(&ended.build.estimate, -1.0, now);
        self.measurements.ended = self.measurements.ended + ended.build.estimate.get(&ExecutorType::x86());
    }

    fn change(&mut self, estimate: &Occupancy, sign: f64, now: u64) {
        self.accumulate(now);
        for (kind, amount) in self.allowance.counted(estimate).iter() {
            self.in_progress.add(kind, if sign < 0.0 { -amount } else { amount });
        }
        self.measurements.peak = self.measurements.peak.max(self.in_progress());
    }

    fn accumulate(&mut self, now: u64) {
        self.measurements.area += self.in_progress().units() * (now - self.measurements.changed) as f64;
        self.measurements.changed = now;
    }

    /// Returns the ESU in use at `now`.
    pub(super) fn usage(&self, now: u64, ramp_seconds: f64) -> f64 {
        let usage_of = |running: &Running| {
            let age = (now - running.since) as f64 / 1000.0;
            running.build.esu * if ramp_seconds > 0.0 { (age / ramp_seconds).min(1.0) } else { 1.0 }
        };
        self.running.values().map(usage_of).fold(0.0, |sum, esu| sum + esu)
    }

    /// Records a usage sample, and reports the mean of the recorded samples when a report is due.
    pub(super) fn report(&mut self, pv: f64, is_due: bool) {
        self.unreported = (self.unreported.0 + pv, self.unreported.1 + 1.0);
        if is_due {
            let (sum, count) = std::mem::take(&mut self.unreported);
            self.measurements.reports =
                (self.measurements.reports.0 + sum / count, self.measurements.reports.1 + 1.0);
        }
    }

    /// Returns the group's state for the governor and starts new measurements.
    pub(super) fn state(&mut self, now: u64) -> GroupState {
        self.accumulate(now);
        let x86 = |amount: f64| Occupancy::of_each([ExecutorType::x86()], Esu::clamped(amount));
        let span = (now - self.measurements.began) as f64;
        let (sum, count) = self.measurements.reports;
        let pv = if count > 0.0 { sum / count } else { self.measurements.pv };
        let waiting: Esu = self.waiting.iter().map(|build| build.estimate.get(&ExecutorType::x86())).sum();
        let in_progress = self.in_progress();
        let state = GroupState {
            quota: self.quota.clone(),
            pv: x86(pv),
            backlog: Occupancy::default(),
            in_progress: x86(if span > 0.0 { self.measurements.area / span } else { in_progress.units() }),
            peak: x86(self.measurements.peak.max(in_progress).units()),
            ended: x86(self.measurements.ended.units()),
            waiting: x86(waiting.units()),
            head: self.waiting.front().map(|build| build.estimate.clone()),
        };
        self.measurements = TickMeasurements {
            began: now,
            changed: now,
            peak: in_progress,
            pv,
            ..TickMeasurements::default()
        };
        state
    }
}
