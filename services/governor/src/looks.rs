//! Aggregates the samples of one tick: builds may be far shorter than a tick.

use std::collections::BTreeMap;

use index::Demand;
use model::{Esu, Group, Occupancy, Quotas};
use policy::GroupState;

/// All samples since the last decision.
#[derive(Default)]
pub(crate) struct Samples {
    count: u32,
    groups: BTreeMap<Group, GroupSamples>,
    /// Total of ended runs at the previous sample, by group.
    ended: BTreeMap<Group, Occupancy>,
}

#[derive(Default)]
struct GroupSamples {
    in_use: Occupancy,
    in_progress: Occupancy,
    peak: Occupancy,
    ended: Occupancy,
    waiting: Occupancy,
    head: Option<Occupancy>,
}

impl Samples {
    /// Adds a sample of the current use and demand.
    pub(crate) fn add(&mut self, in_use: &BTreeMap<Group, Occupancy>, demands: &[Demand]) {
        self.count += 1;
        for samples in self.groups.values_mut() {
            (samples.waiting, samples.head) = (Occupancy::default(), None);
        }
        for (group, occupancy) in in_use {
            add(&mut self.groups.entry(group.clone()).or_default().in_use, occupancy);
        }
        for demand in demands {
            let samples = self.groups.entry(demand.group.clone()).or_default();
            add(&mut samples.in_progress, &demand.in_progress);
            for (kind, amount) in demand.in_progress.iter() {
                let peak = samples.peak.0.entry(kind.clone()).or_default();
                *peak = amount.max(*peak);
            }
            if let Some(before) = self.ended.get(&demand.group) {
                for (kind, amount) in demand.ended.iter() {
                    // Smaller than before: the index was rebuilt.
                    samples.ended.add(kind, (amount - before.get(kind)).or_zero());
                }
            }
            samples.head = demand.waiting.first().map(|build| build.traits.occupancy.clone());
            samples.waiting = waiting(demand);
        }
        // A group without builds keeps its count: its next builds are counted from there.
        self.ended.extend(demands.iter().map(|demand| (demand.group.clone(), demand.ended.clone())));
    }

    /// Drops all samples after a decision by any governor. The totals of ended runs are kept.
    pub(crate) fn reset(&mut self) {
        self.count = 0;
        self.groups.clear();
    }

    /// Whether there was neither use nor demand.
    pub(crate) fn is_quiet(&self) -> bool {
        let quiet = |samples: &GroupSamples| {
            samples.head.is_none()
                && [&samples.in_use, &samples.peak, &samples.ended].iter().all(|occupancy| is_zero(occupancy))
        };
        self.groups.values().all(quiet)
    }

    /// Returns the averages for the decision, and removes the samples.
    pub(crate) fn averages(&mut self, quotas: &Quotas) -> BTreeMap<Group, GroupState> {
        let share = 1.0 / f64::from(self.count.max(1));
        let mut groups = std::mem::take(&mut self.groups);
        for group in quotas.groups.keys() {
            groups.entry(group.clone()).or_default();
        }
        self.count = 0;
        let state = |(group, samples): (Group, GroupSamples)| {
            let quota = quotas.of(&group).map(|quota| quota.esu.clone()).unwrap_or_default();
            let state = GroupState {
                quota,
                pv: times(&samples.in_use, share),
                in_progress: times(&samples.in_progress, share),
                peak: samples.peak,
                ended: samples.ended,
                waiting: samples.waiting,
                head: samples.head,
            };
            (group, state)
        };
        groups.into_iter().map(state).collect()
    }
}

/// Estimate of the whole queue, from the average of its head.
fn waiting(demand: &Demand) -> Occupancy {
    let mut head = Occupancy::default();
    for build in &demand.waiting {
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
