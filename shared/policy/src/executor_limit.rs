//! Limits the builds that run actions on executors to what the executors carry, where no quota does.

use model::{Esu, ExecutorType, GovernorRecord, Occupancy, ThrottledBy, Waiting};

use crate::{Dequeue, Lack, QuotaTotals, Stand, Throttled};

/// The level up to which builds that run actions may start, over all groups: the governor's decision for executor
/// types of which no group has a quota. Builds that run no actions are not limited.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecutorLimit {
    target: Occupancy,
    /// Capacity of the executors: a build with a larger estimate counts as this much.
    capacity: Occupancy,
}

impl ExecutorLimit {
    /// The limit after the decision `record`, with these sums of quotas.
    pub fn of(totals: &QuotaTotals, record: &GovernorRecord) -> Self {
        let limited = || record.executors.iter().filter(|(kind, _)| !totals.has(kind));
        Self {
            target: limited().map(|(kind, governed)| (kind.clone(), governed.target)).collect(),
            capacity: limited().map(|(kind, governed)| (kind.clone(), governed.quota)).collect(),
        }
    }

    /// Whether no build is limited.
    pub fn is_unlimited(&self) -> bool {
        self.target.is_empty()
    }

    /// Level of `kind` up to which builds may start.
    pub fn target(&self, kind: &ExecutorType) -> Esu {
        self.target.get(kind)
    }

    /// The occupancy that an estimate counts as while the build is in progress.
    #[must_use]
    pub fn counted(&self, sends_actions: bool, estimate: Occupancy) -> Occupancy {
        if !sends_actions {
            return estimate;
        }
        let count = |(kind, amount): (ExecutorType, Esu)| {
            let most = self.capacity.get(&kind);
            (kind, if most > Esu::ZERO { amount.min(most) } else { amount })
        };
        estimate.0.into_iter().map(count).collect()
    }

    /// Starts with nothing considered. `in_progress` is the sum over all builds that run actions and
    /// that are offered or in progress now.
    pub fn admission<'a>(&'a self, in_progress: &'a Occupancy) -> ExecutorAdmission<'a> {
        let dequeue = Dequeue::new(&self.target, in_progress);
        ExecutorAdmission { limit: self, in_progress, dequeue }
    }
}

/// Adds to `waiting` what the executors lack for the build of `stand`, if it runs actions: the same decision as dispatch,
/// so nothing for an emergency. `ahead` are the builds ahead of it in its queue, each with whether it runs actions;
/// `in_progress` is that of [`ExecutorLimit::admission`].
pub fn why_executors<'a>(
    mut waiting: Waiting,
    limit: &ExecutorLimit,
    in_progress: &Occupancy,
    ahead: impl IntoIterator<Item = (bool, &'a Occupancy)>,
    (sends_actions, stand): (bool, &Stand<'_>),
) -> Waiting {
    if stand.priority.is_emergency() {
        return waiting;
    }
    let mut admission = limit.admission(in_progress);
    for (sends_actions, estimate) in ahead {
        // Only what it reserves counts.
        let _ = admission.consider(sends_actions, estimate);
    }
    let reserved = admission.reserved().clone();
    let Err(throttled) = admission.consider(sends_actions, stand.estimate) else { return waiting };
    let lacks = throttled.types.into_iter().map(|lack| ThrottledBy {
        needed: lack.needed,
        remaining: lack.remaining,
        target: limit.target(&lack.executor_type),
        in_progress: in_progress.get(&lack.executor_type),
        reserved: reserved.get(&lack.executor_type),
        executor_type: lack.executor_type,
        of_executors: true,
    });
    waiting.throttled_by.extend(lacks);
    if waiting.expected_by.is_none() {
        // It would be about to start.
        waiting.expected_start_ms = None;
    }
    waiting
}

/// A pass over builds; it accumulates what those so far have reserved.
#[derive(Debug, Clone)]
pub struct ExecutorAdmission<'a> {
    limit: &'a ExecutorLimit,
    in_progress: &'a Occupancy,
    dequeue: Dequeue<'a>,
}

impl ExecutorAdmission<'_> {
    /// Considers the next build by Algorithm 1. If no build with actions of a type is in progress, the first one may
    /// start regardless of its estimate: otherwise nothing would ever start on executors that carry less than one build.
    pub fn consider(&mut self, sends_actions: bool, estimate: &Occupancy) -> Result<(), Throttled> {
        let Some(counted) = self.limited(sends_actions, estimate) else { return Ok(()) };
        let is_first = |kind: &ExecutorType| {
            self.in_progress.get(kind) <= Esu::ZERO && self.dequeue.reserved().get(kind) <= Esu::ZERO
        };
        let first: Vec<&ExecutorType> = counted.0.keys().filter(|kind| is_first(kind)).collect();
        let Err(mut throttled) = self.dequeue.consider(&counted) else { return Ok(()) };
        throttled.types.retain(|lack: &Lack| !first.contains(&&lack.executor_type));
        if throttled.types.is_empty() { Ok(()) } else { Err(throttled) }
    }

    /// Starts the next build although the executors may be full, because it is an emergency. It is counted: the builds
    /// behind it lack what it reserves.
    pub fn pass(&mut self, sends_actions: bool, estimate: &Occupancy) {
        if let Some(counted) = self.limited(sends_actions, estimate) {
            // What it lacks does not matter.
            let _ = self.dequeue.consider(&counted);
        }
    }

    /// What a build counts as, of the types that are limited. `None` if it is not limited.
    fn limited(&self, sends_actions: bool, estimate: &Occupancy) -> Option<Occupancy> {
        if !sends_actions || self.limit.is_unlimited() {
            return None;
        }
        let mut counted = self.limit.counted(sends_actions, estimate.clone());
        counted.0.retain(|kind, _| self.limit.target.0.contains_key(kind));
        Some(counted)
    }

    /// The occupancy that an estimate counts as. See [`ExecutorLimit::counted`].
    pub fn counted(&self, sends_actions: bool, estimate: Occupancy) -> Occupancy {
        self.limit.counted(sends_actions, estimate)
    }

    /// Occupancy that the builds so far have reserved.
    pub fn reserved(&self) -> &Occupancy {
        self.dequeue.reserved()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::{Governed, Millis, Priority, Quota, Quotas};
    use proptest::prelude::*;

    use super::*;
    use crate::{Allowance, Workspaces, why};

    fn esu(units: f64) -> Esu {
        Esu::new(units).unwrap()
    }

    fn x86(units: f64) -> Occupancy {
        Occupancy::of_each([ExecutorType::x86()], esu(units))
    }

    fn limit(target: f64, capacity: f64, totals: &QuotaTotals) -> ExecutorLimit {
        let governed = Governed { target: esu(target), quota: esu(capacity), ..Governed::default() };
        let executors = BTreeMap::from([(ExecutorType::x86(), governed)]);
        ExecutorLimit::of(totals, &GovernorRecord { executors, ..GovernorRecord::default() })
    }

    #[test]
    fn builds_without_actions_are_not_limited() {
        let limit = limit(0.0, 0.0, &QuotaTotals::default());
        let busy = x86(5.0);
        let mut admission = limit.admission(&busy);
        assert_eq!(admission.consider(false, &x86(100.0)), Ok(()));
        assert!(admission.consider(true, &x86(0.1)).is_err());
        let gpu = Occupancy::of_each(["gpu".parse().unwrap()], esu(1.0));
        assert_eq!(admission.consider(true, &gpu), Ok(()), "a type without executors");
    }

    #[test]
    fn where_a_group_has_a_quota_the_quotas_apply() {
        let quotas = Quotas { default: Some(Quota { esu: x86(1.0) }), ..Quotas::default() };
        assert!(limit(0.0, 0.0, &QuotaTotals::of(&quotas)).is_unlimited());
    }

    #[test]
    fn the_first_build_starts_whatever_its_estimate() {
        for capacity in [0.0, 8.0] {
            let (limit, idle) = (limit(capacity, capacity, &QuotaTotals::default()), Occupancy::default());
            let mut admission = limit.admission(&idle);
            assert_eq!(admission.consider(true, &x86(40.0)), Ok(()), "capacity {capacity}");
            assert!(admission.consider(true, &x86(1.0)).is_err(), "all of the room is reserved");
        }
    }

    fn why_of(priority: Priority, limit: &ExecutorLimit, in_progress: &Occupancy) -> Waiting {
        let (estimate, none) = (x86(3.0), Occupancy::default());
        let stand = Stand {
            before: 0,
            queued: 1,
            ahead: &[],
            ahead_ms: &[],
            priority,
            estimate: &estimate,
            in_progress: &none,
            workspaces: Workspaces { idle: 1, kept: 0, busy: 0, busy_with: &[], share: 1.0 },
            ends: &[],
            now: Millis(5),
        };
        why_executors(why(&stand, &Allowance::Unlimited), limit, in_progress, [], (true, &stand))
    }

    #[test]
    fn full_executors_do_not_keep_an_emergency_waiting_and_it_counts() {
        let (limit, busy) = (limit(8.0, 8.0, &QuotaTotals::default()), x86(6.0));
        let mut admission = limit.admission(&busy);
        assert_eq!(admission.clone().consider(true, &x86(2.0)), Ok(()));
        admission.pass(true, &x86(3.0));
        assert!(admission.consider(true, &x86(2.0)).is_err(), "the emergency used what was left");
        assert!(!why_of(Priority::Interactive, &limit, &busy).throttled_by.is_empty());
        let urgent = why_of(Priority::Emergency, &limit, &busy);
        assert_eq!((urgent.throttled_by.len(), urgent.expected_start_ms), (0, Some(Millis(5))));
    }

    proptest! {
        #[test]
        fn an_emergency_leaves_the_others_as_much_as_a_build_that_waits(
            target in 0.0..50.0, busy in 0.0..50.0, sends: bool,
            queue in prop::collection::vec((any::<bool>(), 0.02..20.0), 1..20), urgent in 0.02..20.0,
        ) {
            let limit = limit(target, target, &QuotaTotals::default());
            let in_progress = x86(busy);
            let (mut passed, mut considered) = (limit.admission(&in_progress), limit.admission(&in_progress));
            passed.pass(sends, &x86(urgent));
            let _ = considered.consider(sends, &x86(urgent));
            for (sends, amount) in &queue {
                prop_assert_eq!(passed.consider(*sends, &x86(*amount)), considered.consider(*sends, &x86(*amount)));
            }
        }

        #[test]
        fn no_more_starts_than_the_target_but_one_always_does(
            target in 0.0..50.0, capacity in 0.0..50.0, busy in 0.0..50.0,
            queue in prop::collection::vec((any::<bool>(), 0.02..20.0), 1..30),
        ) {
            let limit = limit(target, capacity, &QuotaTotals::default());
            let in_progress = x86(busy);
            let mut admission = limit.admission(&in_progress);
            let (mut started, mut count) = (Esu::ZERO, 0);
            for (sends, amount) in &queue {
                let goes = admission.consider(*sends, &x86(*amount)).is_ok();
                prop_assert!(*sends || goes);
                if *sends && goes {
                    started = started + limit.counted(true, x86(*amount)).get(&ExecutorType::x86());
                    count += 1;
                }
            }
            prop_assert!(count <= 1 || esu(busy) + started <= esu(target).max(started) + esu(busy));
            if busy > 0.0 {
                prop_assert!(count == 0 || esu(busy) + started <= esu(target));
            } else if queue.iter().any(|(sends, _)| *sends) {
                prop_assert!(count >= 1);
            }
        }
    }
}
