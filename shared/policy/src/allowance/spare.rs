//! What no build needs of the quotas: on it a group without a set point starts its first build, without waiting for the
//! governor's next decision.

use std::collections::BTreeMap;

use model::{Esu, ExecutorType, GovernorRecord, Group, Occupancy, Quotas};

use super::Allowance;
use crate::GovernorSettings;

/// The part of all quotas that may be lent and is not, by the governor's last decision. ESU by executor type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spare(Occupancy);

impl Spare {
    /// That of `record`: of each group's quota what it neither uses nor waits for, without what groups borrow already. A
    /// group that the governor has not seen yet counts as using nothing. Of this no more is lent than the governor would lend.
    pub fn of(quotas: &Quotas, record: &GovernorRecord) -> Self {
        let lendable = GovernorSettings::default().borrow_share;
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

    /// How much there is.
    pub fn amount(&self) -> &Occupancy {
        &self.0
    }
}

/// What groups started on [`Spare`] since a decision of the governor: it is not there a second time.
#[derive(Debug, Clone, Default)]
pub struct Lending {
    tick: u64,
    lent: BTreeMap<Group, Occupancy>,
    sum: Occupancy,
}

impl Lending {
    /// Forgets what was lent before the decision of this `tick`: that decision has counted it.
    pub fn decided(&mut self, tick: u64) {
        if tick != self.tick {
            *self = Self { tick, ..Self::default() };
        }
    }

    /// What is left for `group`. What it borrowed itself counts as given back: it may borrow only while it has nothing in
    /// progress.
    pub fn left(&self, spare: &Spare, group: &Group) -> Occupancy {
        let own = self.lent.get(group);
        let others = |kind| self.sum.get(kind) - own.map(|own| own.get(kind)).unwrap_or_default();
        spare.0.iter().map(|(kind, amount)| (kind.clone(), (amount - others(kind)).or_zero())).collect()
    }

    /// Notes that a build of `group` with this `estimate` starts.
    pub fn start(&mut self, group: &Group, allowance: &Allowance, estimate: &Occupancy) {
        let borrowed = allowance.borrowed(estimate);
        if borrowed.is_empty() {
            return;
        }
        let before = self.lent.remove(group).unwrap_or_default();
        before.iter().for_each(|(kind, amount)| self.sum.add(kind, -amount));
        borrowed.iter().for_each(|(kind, amount)| self.sum.add(kind, amount));
        self.lent.insert(group.clone(), borrowed);
    }
}
