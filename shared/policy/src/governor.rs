//! The quota governor (section 3.6 of the paper): how much each group may have in use, and how much to start.
//!
//! Per group and executor type, a controller keeps the ESU in use (PV) at the set point (SP): the group's own quota and
//! what it borrows of others' unused quota. Its output becomes a *level* of estimated ESU in progress, up to which the
//! dispatcher starts builds until the next tick. A level, and not an amount, because builds may be far shorter than a
//! tick: each that ends makes room for the next.

mod control;
mod settings;
mod share;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use model::{Esu, ExecutorType, Governed, GovernorRecord, Group, Millis, Occupancy};

use control::{Moment, Sample, control};
pub use settings::{GovernorSettings, InvalidGovernorSettings};
use share::{Claim, Share, share};

/// Longer than so many ticks without a decision, and what the last one knew is forgotten.
const FORGOTTEN_AFTER_TICKS: f64 = 12.0;

/// What the governor is told of one group at a tick.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupState {
    /// Its own quota; nothing of a type that is not named.
    pub quota: Occupancy,
    /// ESU in use, measured: the average since the last tick.
    pub pv: Occupancy,
    /// Sum of the estimates of its builds in progress or offered: the average since the last tick. Builds shorter than a
    /// tick make any single look at it useless; the average of a few looks will do.
    pub in_progress: Occupancy,
    /// The same sum at its largest since the last tick. Less than `in_progress` counts as equal to it.
    pub peak: Occupancy,
    /// Sum of the estimates of its builds that ended since the last tick. Nothing is a safe answer for builds longer
    /// than a tick.
    pub ended: Occupancy,
    /// Sum of the estimates of its waiting builds; of a bounded head of its queue, that should hold its quota's worth.
    pub waiting: Occupancy,
    /// Estimate of its next build.
    pub head: Option<Occupancy>,
}

/// When the decision after `last` is due. Replicas that keep to it make one decision a tick between them.
pub fn next_tick(last: &GovernorRecord, settings: &GovernorSettings) -> Millis {
    last.at_ms.after(Duration::try_from_secs_f64(settings.tick_seconds).unwrap_or_default())
}

/// The decision after `last`. The record is the whole state: any replica goes on from it.
///
/// Set points: each group has its own quota, and hungry groups share `borrow_share` of what others leave unused. What is
/// lent goes back at the next tick, by the borrower starting nothing; no build is ended. When quotas add up to more than
/// `capacity` has of a type, each counts as its part of the capacity, and nothing is borrowed beyond it; of a type that
/// `capacity` does not name there is as much as the quotas say. Capacity that is nobody's quota is not given to anyone.
///
/// A group whose use and next build are within its set point always starts that build, whatever the gains.
///
/// Groups that have neither quota nor builds are dropped. A clock that was set back, or a gap of a minute, makes this a
/// first decision that knows only what it sees.
pub fn govern(
    last: &GovernorRecord,
    groups: &BTreeMap<Group, GroupState>,
    capacity: Option<&Occupancy>,
    settings: &GovernorSettings,
    now: Millis,
) -> GovernorRecord {
    let empty = GovernorRecord::default();
    let elapsed = now.since(last.at_ms).as_secs_f64();
    let known = last.tick > 0 && elapsed > 0.0 && elapsed <= FORGOTTEN_AFTER_TICKS * settings.tick_seconds;
    let (before, seconds) = if known { (last, elapsed) } else { (&empty, settings.tick_seconds) };
    let mut decided: BTreeMap<Group, BTreeMap<ExecutorType, Governed>> = BTreeMap::new();
    for kind in types(groups) {
        let available = capacity.and_then(|capacity| capacity.0.get(&kind).copied());
        for (group, governed) in govern_type(&kind, before, groups, available, settings, seconds) {
            decided.entry(group.clone()).or_default().insert(kind.clone(), governed);
        }
    }
    GovernorRecord { tick: last.tick.saturating_add(1), at_ms: now, groups: decided }
}

/// The executor types that anything is known of.
fn types(groups: &BTreeMap<Group, GroupState>) -> BTreeSet<ExecutorType> {
    let of = |state: &GroupState| {
        let all = [&state.quota, &state.pv, &state.in_progress, &state.peak, &state.waiting];
        all.into_iter().chain(&state.head).flat_map(|some| some.0.keys().cloned()).collect::<Vec<_>>()
    };
    groups.values().flat_map(of).collect()
}

fn govern_type<'a>(
    kind: &ExecutorType,
    before: &GovernorRecord,
    groups: &'a BTreeMap<Group, GroupState>,
    available: Option<Esu>,
    settings: &GovernorSettings,
    seconds: f64,
) -> Vec<(&'a Group, Governed)> {
    let moments: Vec<(&Group, Moment)> = groups
        .iter()
        .map(|(group, state)| {
            let last = before.groups.get(group).and_then(|types| types.get(kind));
            (group, Moment::new(Sample::of(state, kind), last, settings, seconds))
        })
        .collect();
    let claims: Vec<Claim> = moments.iter().map(|(_, moment)| moment.claim()).collect();
    let shares = share(&claims, available.map(Esu::units), settings, seconds);
    let decide = |((group, moment), share): ((&'a Group, Moment), Share)| {
        moment.is_of_interest().then(|| (group, control(&moment, &share, settings)))
    };
    moments.into_iter().zip(shares).filter_map(decide).collect()
}

#[cfg(test)]
mod tests;
