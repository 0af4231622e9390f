//! Decides what a group may start now: Algorithm 1 (section 4.4 of the paper) against the governor's targets.

use std::collections::BTreeMap;

use model::{Esu, ExecutorType, Governed, GovernorRecord, Group, Occupancy, Quotas};

use crate::{Dequeue, Throttled};
pub use spare::{Lending, Spare};

mod spare;

/// What a group may have in progress.
#[derive(Debug, Clone, PartialEq)]
pub enum Allowance {
    /// No limit, because no group of the farm has a quota.
    Unlimited,
    /// Limited by the governor's decision.
    Governed {
        /// The decision for each executor type.
        types: BTreeMap<ExecutorType, Governed>,
        /// The targets of these types, as Algorithm 1 uses them.
        target: Occupancy,
        /// Unused quota of other groups, on which the first build of this group may start if the group
        /// has no set point.
        spare: Occupancy,
    },
}

/// Why a build stays in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// The group has no room for it at present.
    Throttled(Throttled),
    /// The quotas of a type that it needs total 0, so nothing can be borrowed either. The build reserves nothing:
    /// waiting for a change of quotas must not keep other builds from starting.
    NoQuota {
        /// Those types, in the order of their names.
        types: Vec<ExecutorType>,
    },
}

/// A type of which a build is expected to occupy more than its group can ever have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clamped {
    /// The executor type that is exceeded.
    pub executor_type: ExecutorType,
    /// Estimated occupancy of the build.
    pub estimate: Esu,
    /// Occupancy that it counts as: the group's quota plus the maximum that it may borrow.
    pub counts_as: Esu,
}

/// Sum of all quotas by executor type; computed once for many groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QuotaTotals(Occupancy);

impl QuotaTotals {
    /// Computes the sums of `quotas`.
    pub fn of(quotas: &Quotas) -> Self {
        let mut totals = Occupancy::default();
        for (kind, amount) in quotas.groups.values().chain(&quotas.default).flat_map(|quota| quota.esu.iter())
        {
            totals.add(kind, amount.or_zero());
        }
        Self(totals)
    }

    /// Whether any group has a quota of `kind`.
    pub fn has(&self, kind: &ExecutorType) -> bool {
        self.0.0.contains_key(kind)
    }
}

/// ESU of `kind` that `group` may have in use: the set point of the governor, else its quota where the governor has not
/// decided yet. `None` if no group has a quota of the type.
pub fn set_point(
    group: &Group,
    kind: &ExecutorType,
    quotas: &Quotas,
    totals: &QuotaTotals,
    record: &GovernorRecord,
) -> Option<Esu> {
    let decided = record.groups.get(group).and_then(|types| types.get(kind)).map(|governed| governed.sp);
    let own = || quotas.of(group).map(|quota| quota.esu.get(kind)).unwrap_or_default();
    totals.has(kind).then(|| decided.unwrap_or_else(own).or_zero())
}

impl Allowance {
    /// The allowance of `group`. Where the governor has not decided yet, for example for a new group, the
    /// quotas apply: the first build may start, the next ones wait for the governor. A group without a quota
    /// needs [`Allowance::lending`] for that.
    ///
    /// An executor type of which no group has a quota is not limited: quotas of one type do not affect the other types.
    pub fn of(group: &Group, quotas: &Quotas, totals: &QuotaTotals, record: &GovernorRecord) -> Self {
        if totals.0.is_empty() {
            return Self::Unlimited;
        }
        let limited =
            |(kind, limit): (&ExecutorType, Esu)| (kind.clone(), Governed { limit, ..Governed::default() });
        let mut types: BTreeMap<ExecutorType, Governed> = totals.0.iter().map(limited).collect();
        for (kind, amount) in quotas.of(group).into_iter().flat_map(|quota| quota.esu.iter()) {
            if let Some(governed) = types.get_mut(kind) {
                (governed.quota, governed.sp) = (amount.or_zero(), amount.or_zero());
            }
        }
        for (kind, decided) in record.groups.get(group).into_iter().flatten() {
            if let Some(governed) = types.get_mut(kind) {
                *governed = *decided;
            }
        }
        Self::governed(types)
    }

    /// The allowance that the governor decided.
    pub fn governed(types: BTreeMap<ExecutorType, Governed>) -> Self {
        let target = types.iter().map(|(kind, governed)| (kind.clone(), governed.target)).collect();
        Self::Governed { types, target, spare: Occupancy::default() }
    }

    /// Adds `spare` quota of other groups, on which the first build may start if this group has no set point.
    #[must_use]
    pub fn lending(mut self, amount: Occupancy) -> Self {
        if let Self::Governed { spare, .. } = &mut self {
            *spare = amount;
        }
        self
    }

    /// The part of other groups' quotas that a build with this `estimate` uses before the governor has lent it.
    fn borrowed(&self, estimate: &Occupancy) -> Occupancy {
        let Self::Governed { types, .. } = self else { return Occupancy::default() };
        let without = |kind: &ExecutorType| types.get(kind).is_some_and(|governed| governed.sp <= Esu::ZERO);
        let amounts = counted(types, estimate);
        amounts.0.into_iter().filter(|(kind, amount)| without(kind) && *amount > Esu::ZERO).collect()
    }

    /// Starts at the head of the group's queue. `in_progress` is the sum of the estimates of its builds that are in
    /// progress or offered now, as computed by [`Allowance::counted`].
    pub fn admission<'a>(&'a self, in_progress: &'a Occupancy) -> Admission<'a> {
        match self {
            Self::Unlimited => Admission(None),
            Self::Governed { types, target, spare } => {
                let dequeue = Dequeue::new(target, in_progress);
                Admission(Some(Governing { types, spare, in_progress, dequeue }))
            }
        }
    }

    /// The occupancy that an estimate counts as: at most what the group can ever have of each type, so that an absurd
    /// estimate neither keeps a build waiting permanently nor blocks other builds.
    pub fn counted(&self, estimate: &Occupancy) -> Occupancy {
        match self {
            Self::Unlimited => estimate.clone(),
            Self::Governed { types, .. } => counted(types, estimate),
        }
    }

    /// The types of which an estimate counts as less than its value.
    pub fn clamped(&self, estimate: &Occupancy) -> Vec<Clamped> {
        let counted = self.counted(estimate);
        let less = |(kind, estimate): (&ExecutorType, Esu)| {
            let counts_as = counted.get(kind);
            (counts_as < estimate).then(|| Clamped { executor_type: kind.clone(), estimate, counts_as })
        };
        estimate.iter().filter_map(less).collect()
    }

    /// The level of ESU in progress up to which builds of a type may start.
    pub fn target(&self, kind: &ExecutorType) -> Esu {
        match self {
            Self::Unlimited => Esu::MAX,
            Self::Governed { target, .. } => target.get(kind),
        }
    }

    /// Indices of the builds in `queue` that may start.
    pub fn startable<'a>(
        &self,
        queue: impl IntoIterator<Item = &'a Occupancy>,
        in_progress: &Occupancy,
    ) -> Vec<usize> {
        let mut admission = self.admission(in_progress);
        let goes = |(place, estimate)| admission.consider(estimate).is_ok().then_some(place);
        queue.into_iter().enumerate().filter_map(goes).collect()
    }
}

/// Limits each type to the group's limit. Types without a limit are unchanged.
fn counted(types: &BTreeMap<ExecutorType, Governed>, estimate: &Occupancy) -> Occupancy {
    let count = |(kind, amount): (&ExecutorType, Esu)| {
        let limit = types.get(kind).map_or(Esu::ZERO, |governed| governed.limit);
        (kind.clone(), if limit > Esu::ZERO { amount.min(limit) } else { amount })
    };
    estimate.iter().map(count).collect()
}

/// A pass over a group's queue, page by page; it accumulates what the builds so far have reserved.
#[derive(Debug, Clone)]
pub struct Admission<'a>(Option<Governing<'a>>);

#[derive(Debug, Clone)]
struct Governing<'a> {
    types: &'a BTreeMap<ExecutorType, Governed>,
    spare: &'a Occupancy,
    in_progress: &'a Occupancy,
    dequeue: Dequeue<'a>,
}

impl Admission<'_> {
    /// Considers the next build of the queue by Algorithm 1 and the rule for the first build.
    pub fn consider(&mut self, estimate: &Occupancy) -> Result<(), Held> {
        self.0.as_mut().map_or(Ok(()), |governing| governing.consider(estimate))
    }

    /// Starts the next build regardless of the quotas, because it is an emergency. It is counted: the builds behind it
    /// lack what it reserves, so the group gives back what it has above its target.
    pub fn pass(&mut self, estimate: &Occupancy) {
        if let Some(governing) = &mut self.0 {
            governing.pass(estimate);
        }
    }

    /// Whether no later build can start, except emergencies.
    pub fn is_exhausted(&self) -> bool {
        self.0.as_ref().is_some_and(Governing::is_exhausted)
    }

    /// Occupancy that the builds so far have reserved; empty without a limit.
    pub fn reserved(&self) -> Occupancy {
        self.0.as_ref().map(|governing| governing.dequeue.reserved().clone()).unwrap_or_default()
    }
}

impl Governing<'_> {
    fn consider(&mut self, estimate: &Occupancy) -> Result<(), Held> {
        let missing = |kind: &&ExecutorType| self.types.get(*kind).is_some_and(|at| at.limit <= Esu::ZERO);
        let missing: Vec<ExecutorType> = estimate.0.keys().filter(missing).cloned().collect();
        if !missing.is_empty() {
            return Err(Held::NoQuota { types: missing });
        }
        let counted = self.limited(estimate);
        let free = counted.iter().filter(|(kind, needed)| self.is_free(kind, *needed)).map(|(kind, _)| kind);
        let free: Vec<&ExecutorType> = free.collect();
        let Err(mut throttled) = self.dequeue.consider(&counted) else { return Ok(()) };
        throttled.types.retain(|lack| !free.contains(&&lack.executor_type));
        if throttled.types.is_empty() { Ok(()) } else { Err(Held::Throttled(throttled)) }
    }

    fn pass(&mut self, estimate: &Occupancy) {
        let counted = self.limited(estimate);
        // What it lacks does not matter.
        let _ = self.dequeue.consider(&counted);
    }

    /// What a build counts as, of the types that are limited.
    fn limited(&self, estimate: &Occupancy) -> Occupancy {
        let mut counted = counted(self.types, estimate);
        counted.0.retain(|kind, _| self.types.contains_key(kind));
        counted
    }

    /// The rule for the first build: if the group has nothing of a type in progress, its first build that needs the
    /// type may start, whatever its estimate and the target, provided that the group may use the type at all. Otherwise
    /// a quota smaller than any build would start none, and short builds would wait for the governor's tick. A group
    /// without a set point may use what others leave: with many such groups on a busy farm nothing is left, and they
    /// wait for the governor.
    fn is_free(&self, kind: &ExecutorType, needed: Esu) -> bool {
        let has_set_point = self.types.get(kind).is_some_and(|governed| governed.sp > Esu::ZERO);
        let spare = self.spare.get(kind);
        let usable = has_set_point || (spare > Esu::ZERO && needed <= spare);
        usable && self.in_progress.get(kind) <= Esu::ZERO && self.dequeue.reserved().get(kind) <= Esu::ZERO
    }

    /// All builds use x86: without it no other type is of use.
    fn is_exhausted(&self) -> bool {
        let x86 = ExecutorType::x86();
        let spent =
            |kind: &ExecutorType| self.dequeue.remaining(kind) <= Esu::ZERO && !self.is_free(kind, Esu::ZERO);
        (self.types.contains_key(&x86) && spent(&x86)) || self.types.keys().all(spent)
    }
}

#[cfg(test)]
mod tests;
