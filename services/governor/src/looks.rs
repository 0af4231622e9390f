//! Aggregates the samples of one tick: builds may be far shorter than a tick.

use std::collections::BTreeMap;

use index::{Demand, ExecutorDemand, WaitingBuild};
use model::{Esu, Group, Occupancy, Quotas};
use policy::{ExecutorsState, GroupState};

use crate::usage::InUse;

/// Everything that is read for one sample.
pub(crate) struct Look {
    pub(crate) in_use: InUse,
    /// ESU of waiting actions by group.
    pub(crate) backlog: BTreeMap<Group, Occupancy>,
    pub(crate) demands: Vec<Demand>,
    pub(crate) on_executors: ExecutorDemand,
}

/// All samples since the last decision.
#[derive(Default)]
pub(crate) struct Samples {
    count: u32,
    groups: BTreeMap<Group, DemandSamples>,
    /// All builds that run actions, as one group.
    senders: DemandSamples,
    /// Estimates of the builds in progress or waiting at the last sample that run no actions.
    elsewhere: Occupancy,
    /// Totals of ended runs at the previous sample.
    ended: Ended,
}

#[derive(Default)]
struct Ended {
    groups: BTreeMap<Group, Occupancy>,
    senders: Option<Occupancy>,
}

#[derive(Default)]
struct DemandSamples {
    in_use: Occupancy,
    backlog: Occupancy,
    in_progress: Occupancy,
    peak: Occupancy,
    ended: Occupancy,
    waiting: Occupancy,
    head: Option<Occupancy>,
}

impl DemandSamples {
    /// Adds what is in progress now, and what ended since `before`.
    fn add_progress(&mut self, in_progress: &Occupancy, before: Option<&Occupancy>, ended: &Occupancy) {
        add(&mut self.in_progress, in_progress);
        for (kind, amount) in in_progress.iter() {
            let peak = self.peak.0.entry(kind.clone()).or_default();
            *peak = amount.max(*peak);
        }
        if let Some(before) = before {
            for (kind, amount) in ended.iter() {
                // Smaller than before: the index was rebuilt.
                self.ended.add(kind, (amount - before.get(kind)).or_zero());
            }
        }
    }

    fn is_quiet(&self) -> bool {
        self.head.is_none()
            && [&self.in_use, &self.backlog, &self.peak, &self.ended]
                .iter()
                .all(|occupancy| is_zero(occupancy))
    }

    /// Averages of `1 / share` samples.
    fn state(self, quota: Occupancy, share: f64) -> GroupState {
        GroupState {
            quota,
            pv: times(&self.in_use, share),
            backlog: times(&self.backlog, share),
            in_progress: times(&self.in_progress, share),
            peak: self.peak,
            ended: self.ended,
            waiting: self.waiting,
            head: self.head,
        }
    }
}

impl Samples {
    /// Adds a sample of the current use and demand.
    pub(crate) fn add(&mut self, look: &Look) {
        self.count += 1;
        for samples in self.groups.values_mut().chain([&mut self.senders]) {
            (samples.waiting, samples.head) = (Occupancy::default(), None);
        }
        for (group, occupancy) in &look.in_use.groups {
            add(&mut self.groups.entry(group.clone()).or_default().in_use, occupancy);
        }
        add(&mut self.senders.in_use, &look.in_use.on_executors);
        for (group, occupancy) in &look.backlog {
            add(&mut self.groups.entry(group.clone()).or_default().backlog, occupancy);
            add(&mut self.senders.backlog, occupancy);
        }
        self.elsewhere = Occupancy::default();
        for demand in &look.demands {
            let samples = self.groups.entry(demand.group.clone()).or_default();
            samples.add_progress(&demand.in_progress, self.ended.groups.get(&demand.group), &demand.ended);
            samples.head = demand.waiting.first().map(|build| build.traits.occupancy.clone());
            samples.waiting = waiting(demand, |_| true);
            add(&mut self.elsewhere, &demand.in_progress);
            add(&mut self.elsewhere, &waiting(demand, |build| !build.traits.sends_actions));
            add(&mut self.senders.waiting, &waiting(demand, |build| build.traits.sends_actions));
            let first = demand.waiting.iter().find(|build| build.traits.sends_actions);
            let head = first.map(|build| build.traits.occupancy.clone());
            self.senders.head = self.senders.head.take().or(head);
        }
        let ExecutorDemand { in_progress, ended } = &look.on_executors;
        self.senders.add_progress(in_progress, self.ended.senders.as_ref(), ended);
        for (kind, amount) in in_progress.iter() {
            self.elsewhere.add(kind, -amount);
        }
        // A group without builds keeps its count: its next builds are counted from there.
        let ended_of = |demand: &Demand| (demand.group.clone(), demand.ended.clone());
        self.ended.groups.extend(look.demands.iter().map(ended_of));
        self.ended.senders = Some(ended.clone());
    }

    /// Drops all samples after a decision by any governor. The totals of ended runs are kept.
    pub(crate) fn reset(&mut self) {
        self.count = 0;
        self.groups.clear();
        self.senders = DemandSamples::default();
    }

    /// Whether there was neither use nor demand.
    pub(crate) fn is_quiet(&self) -> bool {
        self.groups.values().all(DemandSamples::is_quiet)
    }

    /// Returns the averages for the decision, and removes the samples. `capacity` is what the executors carry, and
    /// `cap` the maximum of each type.
    pub(crate) fn averages(
        &mut self,
        quotas: &Quotas,
        capacity: Occupancy,
        cap: Occupancy,
    ) -> (BTreeMap<Group, GroupState>, ExecutorsState) {
        let share = 1.0 / f64::from(self.count.max(1));
        let mut groups = std::mem::take(&mut self.groups);
        for group in quotas.groups.keys() {
            groups.entry(group.clone()).or_default();
        }
        self.count = 0;
        let state = |(group, samples): (Group, DemandSamples)| {
            let quota = quotas.of(&group).map(|quota| quota.esu.clone()).unwrap_or_default();
            (group, samples.state(quota, share))
        };
        let builds = std::mem::take(&mut self.senders).state(Occupancy::default(), share);
        let elsewhere = std::mem::take(&mut self.elsewhere);
        (groups.into_iter().map(state).collect(), ExecutorsState { capacity, cap, builds, elsewhere })
    }
}

/// Estimate of those builds of the whole queue that are `wanted`, from the share of them in its head.
fn waiting(demand: &Demand, wanted: impl Fn(&WaitingBuild) -> bool) -> Occupancy {
    let mut head = Occupancy::default();
    for build in demand.waiting.iter().filter(|build| wanted(build)) {
        add(&mut head, &build.traits.occupancy);
    }
    times(&head, demand.queued as f64 / (demand.waiting.len().max(1)) as f64)
}

fn add(sum: &mut Occupancy, occupancy: &Occupancy) {
    for (kind, amount) in occupancy.iter() {
        sum.add(kind, amount);
    }
}

fn times(occupancy: &Occupancy, factor: f64) -> Occupancy {
    occupancy.iter().map(|(kind, amount)| (kind.clone(), amount.times(factor))).collect()
}

fn is_zero(occupancy: &Occupancy) -> bool {
    occupancy.iter().all(|(_, amount)| amount <= Esu::ZERO)
}
