//! The quota governor (section 3.6 of the paper): decides how much each group may have in use, and how much to start.
//!
//! For each group and executor type, a controller keeps the ESU in use (PV) at the set point (SP), which is the group's
//! own quota plus what it borrows of others' unused quota. Its output becomes a *level* of estimated ESU in progress,
//! up to which the dispatcher starts builds until the next tick. It is a level and not an amount because builds may be
//! far shorter than a tick: each one that ends makes room for the next.

mod control;
mod settings;
mod share;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use invariant::Present as _;
use model::{Esu, ExecutorType, Governed, GovernorRecord, Group, Millis, Occupancy};

use control::{DerivedSample, Sample, control};
pub use settings::{ControlSettings, InvalidControlSettings};
use share::{Claim, Share, share};

/// Number of ticks without a decision after which the state of the last decision is discarded.
const FORGOTTEN_AFTER_TICKS: f64 = 12.0;

/// Input of the governor about one group at a tick.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupState {
    /// Its own quota; 0 for types that are not named.
    pub quota: Occupancy,
    /// Measured ESU in use: the average since the last tick.
    pub pv: Occupancy,
    /// ESU of its actions that wait for an executor: the average since the last tick. They are demand that does not
    /// show in the use while the executors are full.
    pub backlog: Occupancy,
    /// Sum of the estimates of its builds in progress or offered: the average since the last tick. If builds are
    /// shorter than a tick, a single observation is useless; the average of several is sufficient.
    pub in_progress: Occupancy,
    /// The maximum of the same sum since the last tick. A value below `in_progress` counts as equal to it.
    pub peak: Occupancy,
    /// Sum of the estimates of its builds that ended since the last tick. 0 is a safe value for builds
    /// longer than a tick.
    pub ended: Occupancy,
    /// Sum of the estimates of its waiting builds; of a bounded head of its queue, which should cover
    /// at least its quota.
    pub waiting: Occupancy,
    /// Estimate of its next build.
    pub head: Option<Occupancy>,
}

/// Input of the governor about the executors at a tick.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecutorsState {
    /// ESU that the executors carry; types without executors are missing. See [`crate::capacity`].
    pub capacity: Occupancy,
    /// Maximum ESU of a type in the whole farm (setting `capacity`); types that it does not name are not limited.
    pub cap: Occupancy,
    /// All builds that run actions, as one group. Its quota does not count: it is the capacity.
    pub builds: GroupState,
    /// Estimates of the builds in progress or waiting that run no actions: they do not use the capacity.
    pub elsewhere: Occupancy,
}

impl ExecutorsState {
    /// ESU of `kind` that quotas can grant: what the executors carry, and what builds without actions need. At least
    /// 1 ESU, so that each group can start a build.
    fn available(&self, kind: &ExecutorType) -> Option<Esu> {
        let cap = self.cap.0.get(kind).copied();
        let Some(carried) = self.capacity.0.get(kind) else { return cap };
        let all = (*carried + self.elsewhere.get(kind).or_zero()).max(Esu::ONE);
        Some(cap.map_or(all, |cap| cap.min(all)))
    }
}

/// When the decision after `last` is due. Replicas that follow this make one decision per tick together.
pub fn next_tick(last: &GovernorRecord, settings: &ControlSettings) -> Millis {
    last.at_ms
        .after(Duration::try_from_secs_f64(settings.tick_seconds).present("the tick of checked settings"))
}

/// Makes the decision after `last`. The record is the whole state: any replica can continue from it.
///
/// Set points: each group has its own quota, and groups that need more share `borrow_share` of what others leave
/// unused. Lent quota is returned at the next tick, because the borrower starts nothing; no build is ended. If quotas
/// add up to more than is available of a type, each is scaled down to its part of it, and nothing is borrowed beyond
/// it. Available is what the live executors carry, plus what builds without actions need, at most the setting
/// `capacity`; a type without executors that the setting does not name has as much as the quotas say. Capacity outside
/// all quotas is not given to any group.
///
/// All builds that run actions are governed a second time, as one group with the capacity of the executors as its quota.
/// [`crate::ExecutorLimit`] applies this decision.
///
/// A group whose use plus next build is within its set point always starts that build, whatever the gains.
///
/// Groups that have neither quota nor builds are dropped. After a clock that was set back, or a gap of more than
/// 12 ticks (a minute by default), the decision is made like the first one, from its inputs alone.
pub fn govern(
    last: &GovernorRecord,
    groups: &BTreeMap<Group, GroupState>,
    executors: &ExecutorsState,
    settings: &ControlSettings,
    now: Millis,
) -> GovernorRecord {
    let empty = GovernorRecord::default();
    let elapsed = now.since(last.at_ms).as_secs_f64();
    let known = last.tick > 0 && elapsed > 0.0 && elapsed <= FORGOTTEN_AFTER_TICKS * settings.tick_seconds;
    let (before, seconds) = if known { (last, elapsed) } else { (&empty, settings.tick_seconds) };
    let mut decided: BTreeMap<Group, BTreeMap<ExecutorType, Governed>> = BTreeMap::new();
    for kind in types(groups) {
        let available = executors.available(&kind);
        for (group, governed) in govern_type(&kind, before, groups, available, settings, seconds) {
            decided.entry(group.clone()).or_default().insert(kind.clone(), governed);
        }
    }
    let executors = govern_executors(before, executors, settings, seconds);
    GovernorRecord { tick: last.tick.saturating_add(1), at_ms: now, groups: decided, executors }
}

/// ESU of actions that may wait for an executor, as a fraction of the capacity: executors need work between decisions.
const QUEUED: f64 = 0.1;

/// The decision for all builds that run actions. Estimates fill the whole room at once, because actions that have no
/// executor wait in the queue of actions and count from the next tick on.
fn govern_executors(
    before: &GovernorRecord,
    executors: &ExecutorsState,
    settings: &ControlSettings,
    seconds: f64,
) -> BTreeMap<ExecutorType, Governed> {
    let settings = ControlSettings { kp: 1.0, ki: 0.0, kd: 0.0, ..*settings };
    let builds = GroupState { quota: executors.capacity.clone(), ..executors.builds.clone() };
    let decide = |kind: &ExecutorType| {
        let sample = Sample::of(&builds, kind);
        let derived = DerivedSample::new(sample, before.executors.get(kind), &settings, seconds);
        let capacity = builds.quota.get(kind).or_zero();
        let own = capacity.units() * (1.0 + QUEUED);
        let share = Share { own, borrowed: 0.0, limit: own };
        Governed { quota: capacity, ..control(&derived.within_estimates(), &share, &settings) }
    };
    builds.quota.0.keys().map(|kind| (kind.clone(), decide(kind))).collect()
}

/// The executor types that occur in the inputs.
fn types(groups: &BTreeMap<Group, GroupState>) -> BTreeSet<ExecutorType> {
    let types_of = |state: &GroupState| {
        let all = [&state.quota, &state.pv, &state.backlog, &state.in_progress, &state.peak, &state.waiting];
        all.into_iter().chain(&state.head).flat_map(|some| some.0.keys().cloned()).collect::<Vec<_>>()
    };
    groups.values().flat_map(types_of).collect()
}

fn govern_type<'a>(
    kind: &ExecutorType,
    before: &GovernorRecord,
    groups: &'a BTreeMap<Group, GroupState>,
    available: Option<Esu>,
    settings: &ControlSettings,
    seconds: f64,
) -> Vec<(&'a Group, Governed)> {
    let derived_samples: Vec<(&Group, DerivedSample)> = groups
        .iter()
        .map(|(group, state)| {
            let last = before.groups.get(group).and_then(|types| types.get(kind));
            (group, DerivedSample::new(Sample::of(state, kind), last, settings, seconds))
        })
        .collect();
    let claims: Vec<Claim> = derived_samples.iter().map(|(_, derived)| derived.claim()).collect();
    let shares = share(&claims, available.map(Esu::units), settings, seconds);
    let decide = |((group, derived), share): ((&'a Group, DerivedSample), Share)| {
        derived.is_of_interest().then(|| (group, control(&derived, &share, settings)))
    };
    derived_samples.into_iter().zip(shares).filter_map(decide).collect()
}

#[cfg(test)]
mod tests;
