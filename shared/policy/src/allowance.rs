//! What a group may start now: Algorithm 1 (section 4.4 of the paper) against the governor's targets.

use std::collections::BTreeMap;

use model::{Esu, ExecutorType, Governed, GovernorRecord, Group, Occupancy, Quotas};

use crate::{Dequeue, Throttled};
pub use spare::{Lending, Spare};

mod spare;

/// What a group may have in progress.
#[derive(Debug, Clone, PartialEq)]
pub enum Allowance {
    /// Anything: no group of the farm has a quota.
    Unlimited,
    /// As much as the governor decided.
    Governed {
        /// By executor type.
        types: BTreeMap<ExecutorType, Governed>,
        /// The targets of these, as Algorithm 1 takes them.
        target: Occupancy,
        /// What other groups leave of their quotas, for a first build of this group where it has no set point.
        spare: Occupancy,
    },
}

/// Why a build stays in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// It waits for room.
    Throttled(Throttled),
    /// The quotas of a type that it needs add up to nothing, so that there is nothing to borrow either. It reserves
    /// nothing: what waits for a change of quotas must not keep others from starting.
    NoQuota {
        /// Those types, in the order of their names.
        types: Vec<ExecutorType>,
    },
}

/// A type of which a build is expected to occupy more than its group can ever have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clamped {
    /// Which.
    pub executor_type: ExecutorType,
    /// What the build is expected to occupy.
    pub estimate: Esu,
    /// As how much it counts: the group's quota and the most that it may borrow.
    pub counts_as: Esu,
}

/// What all quotas add up to, by executor type; found once for many groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QuotaTotals(Occupancy);

impl QuotaTotals {
    /// Those of `quotas`.
    pub fn of(quotas: &Quotas) -> Self {
        let mut totals = Occupancy::default();
        for (kind, amount) in quotas.groups.values().chain(&quotas.default).flat_map(|quota| quota.esu.iter())
        {
            totals.add(kind, amount.or_zero());
        }
        Self(totals)
    }
}

impl Allowance {
    /// That of `group`. What the governor has not decided on yet, a new group's say, is taken from the quotas: its first
    /// build may start, the next ones wait for the governor. A group without a quota needs [`Allowance::lending`] for that.
    ///
    /// A type of which no group has a quota is not limited: who gives out quotas of one type says nothing of the others.
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

    /// One that was decided.
    pub fn governed(types: BTreeMap<ExecutorType, Governed>) -> Self {
        let target = types.iter().map(|(kind, governed)| (kind.clone(), governed.target)).collect();
        Self::Governed { types, target, spare: Occupancy::default() }
    }

    /// With `spare` of other groups' quotas: where this group has no set point, its first build may start on that.
    #[must_use]
    pub fn lending(mut self, amount: Occupancy) -> Self {
        if let Self::Governed { spare, .. } = &mut self {
            *spare = amount;
        }
        self
    }

    /// What a build that starts with this `estimate` takes of other groups' quotas before the governor has lent it.
    fn borrowed(&self, estimate: &Occupancy) -> Occupancy {
        let Self::Governed { types, .. } = self else { return Occupancy::default() };
        let without = |kind: &ExecutorType| types.get(kind).is_some_and(|governed| governed.sp <= Esu::ZERO);
        let amounts = counted(types, estimate);
        amounts.0.into_iter().filter(|(kind, amount)| without(kind) && *amount > Esu::ZERO).collect()
    }

    /// Starts at the head of the group's queue. `in_progress` is the sum of the estimates of its builds that are in
    /// progress or offered now, as [`Allowance::counted`] has them.
    pub fn admission<'a>(&'a self, in_progress: &'a Occupancy) -> Admission<'a> {
        match self {
            Self::Unlimited => Admission(None),
            Self::Governed { types, target, spare } => {
                let dequeue = Dequeue::new(target, in_progress);
                Admission(Some(Governing { types, spare, in_progress, dequeue }))
            }
        }
    }

    /// An estimate as it counts: no more of a type than the group can ever have, so that no build waits for ever, or
    /// keeps others waiting, because its estimate is absurd.
    pub fn counted(&self, estimate: &Occupancy) -> Occupancy {
        match self {
            Self::Unlimited => estimate.clone(),
            Self::Governed { types, .. } => counted(types, estimate),
        }
    }

    /// Where an estimate counts as less than it says.
    pub fn clamped(&self, estimate: &Occupancy) -> Vec<Clamped> {
        let counted = self.counted(estimate);
        let less = |(kind, estimate): (&ExecutorType, Esu)| {
            let counts_as = counted.get(kind);
            (counts_as < estimate).then(|| Clamped { executor_type: kind.clone(), estimate, counts_as })
        };
        estimate.iter().filter_map(less).collect()
    }

    /// Up to where builds may be started of a type.
    pub fn target(&self, kind: &ExecutorType) -> Esu {
        match self {
            Self::Unlimited => Esu::MAX,
            Self::Governed { target, .. } => target.get(kind),
        }
    }

    /// The builds of `queue`, by their place in it, that may start.
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

/// No more than each type's limit. A type that is not limited stays as it is.
fn counted(types: &BTreeMap<ExecutorType, Governed>, estimate: &Occupancy) -> Occupancy {
    let count = |(kind, amount): (&ExecutorType, Esu)| {
        let limit = types.get(kind).map_or(Esu::ZERO, |governed| governed.limit);
        (kind.clone(), if limit > Esu::ZERO { amount.min(limit) } else { amount })
    };
    estimate.iter().map(count).collect()
}

/// A pass over a group's queue, page by page: what the builds so far have reserved.
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
    /// Looks at the next build of the queue: Algorithm 1, and the rule of the head.
    pub fn consider(&mut self, estimate: &Occupancy) -> Result<(), Held> {
        self.0.as_mut().map_or(Ok(()), |governing| governing.consider(estimate))
    }

    /// Whether no later build can start.
    pub fn is_exhausted(&self) -> bool {
        self.0.as_ref().is_some_and(Governing::is_exhausted)
    }

    /// What the builds so far have reserved; nothing when unlimited.
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
        let mut counted = counted(self.types, estimate);
        counted.0.retain(|kind, _| self.types.contains_key(kind));
        let free = counted.iter().filter(|(kind, needed)| self.is_free(kind, *needed)).map(|(kind, _)| kind);
        let free: Vec<&ExecutorType> = free.collect();
        let Err(mut throttled) = self.dequeue.consider(&counted) else { return Ok(()) };
        throttled.types.retain(|lack| !free.contains(&&lack.executor_type));
        if throttled.types.is_empty() { Ok(()) } else { Err(Held::Throttled(throttled)) }
    }

    /// The rule of the head: the first build that asks for a type of which the group has nothing in progress finds room
    /// there, whatever its estimate and the target, if the group may use the type at all. A quota smaller than any build
    /// would else start none, and short builds would wait for the governor's tick. A group without a set point may use
    /// what others leave: with many such groups on a busy farm there is nothing left, and they wait for the governor.
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
