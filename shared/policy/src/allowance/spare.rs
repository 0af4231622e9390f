//! Spare quota that no build needs: with it a group without a set point starts its first build, without waiting for
//! the governor's next decision.

use std::collections::BTreeMap;

use model::{Esu, ExecutorType, GovernorRecord, Group, Occupancy, Quotas};

use super::Allowance;
use crate::ControlSettings;

/// The part of all quotas that may be lent and is not lent by the governor's last decision, in ESU by executor type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spare(Occupancy);

impl Spare {
    /// Computes the spare quota from `record`: the part of each group's quota that it neither uses nor waits for, less
    /// what groups already borrow. A group that the governor has not seen yet counts as unused. The result never
    /// exceeds what the governor would lend.
    pub fn of(quotas: &Quotas, record: &GovernorRecord) -> Self {
        let lendable = ControlSettings::default().borrow_share;
        let mut spare: BTreeMap<ExecutorType, Esu> = BTreeMap::new();
        for (group, quota) in &quotas.groups {
            let decided = record.groups.get(group);
            for (kind, own) in quota.esu.iter() {
                let governed = decided.and_then(|types| types.get(kind));
                let unused = governed.map_or(own, |governed| {
                    own.min(governed.quota) - governed.pv.max(governed.in_progress) - governed.waiting
                });
                let left = spare.entry(kind.clone()).or_default();
                *left = *left + unused.or_zero().times(lendable);
            }
        }
        for (kind, governed) in record.groups.values().flatten() {
            if let Some(left) = spare.get_mut(kind) {
                *left = *left - governed.borrowed.or_zero();
            }
        }
        Self(spare.into_iter().filter(|(_, left)| *left > Esu::ZERO).collect())
    }

    /// The spare ESU by executor type.
    pub fn amount(&self) -> &Occupancy {
        &self.0
    }
}

/// Tracks what groups started on [`Spare`] since the governor's last decision, so that it is not lent twice.
#[derive(Debug, Clone, Default)]
pub struct Lending {
    tick: u64,
    lent: BTreeMap<Group, Occupancy>,
    sum: Occupancy,
}

impl Lending {
    /// Forgets what was lent before the decision of this `tick`, which includes it.
    pub fn decided(&mut self, tick: u64) {
        if tick != self.tick {
            *self = Self { tick, ..Self::default() };
        }
    }

    /// The spare quota left for `group`. What the group itself borrowed counts as returned, because it may borrow of a
    /// type only while it has nothing of it in progress.
    pub fn left(&self, spare: &Spare, group: &Group) -> Occupancy {
        let own = self.lent.get(group);
        let others = |kind| self.sum.get(kind) - own.map(|own| own.get(kind)).unwrap_or_default();
        spare.0.iter().map(|(kind, amount)| (kind.clone(), (amount - others(kind)).or_zero())).collect()
    }

    /// Records that a build of `group` with this `estimate` starts. It replaces the loans of the same executor types
    /// only: builds that borrow other types may still run.
    pub fn start(&mut self, group: &Group, allowance: &Allowance, estimate: &Occupancy) {
        let borrowed = allowance.borrowed(estimate);
        if borrowed.is_empty() {
            return;
        }
        let own = self.lent.entry(group.clone()).or_default();
        for (kind, amount) in borrowed.iter() {
            let change = amount - own.get(kind);
            own.add(kind, change);
            self.sum.add(kind, change);
        }
    }
}
