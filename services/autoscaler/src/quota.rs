//! Limits the work to what quotas allow: builds that wait for their group's quota do not start
//! sooner with more workers.

use model::{Group, Occupancy, Priority, Sequence};
use policy::{Allowance, QuotaTotals};
use service::Governance;

/// Occupancy that the builds of a group hold and wait for.
#[derive(Debug, Default)]
pub(crate) struct GroupBuilds<'a> {
    running: Vec<&'a Occupancy>,
    emergencies: Vec<&'a Occupancy>,
    waiting: Vec<(Sequence, &'a Occupancy)>,
}

impl<'a> GroupBuilds<'a> {
    /// Adds a running build.
    pub(crate) fn add_running(&mut self, occupancy: &'a Occupancy) {
        self.running.push(occupancy);
    }

    /// Adds a build of this priority that waits since this position.
    pub(crate) fn add_waiting(&mut self, priority: Priority, since: Sequence, occupancy: &'a Occupancy) {
        if priority.is_emergency() {
            self.emergencies.push(occupancy);
        } else {
            self.waiting.push((since, occupancy));
        }
    }
}

/// The amounts that groups may have in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits<'a>(pub(crate) Option<&'a Governance>);

impl Limits<'_> {
    /// Number of waiting builds of `group` that its quota allows to start besides its running ones, with any number of
    /// workers: the decision of dispatch, with the maximum that the group can ever have as its target. All emergencies
    /// start. All builds start if nothing is governed or the governor has not decided about the group yet.
    pub(crate) fn startable(self, group: &Group, mut builds: GroupBuilds<'_>) -> u64 {
        let emergencies = builds.emergencies.len() as u64;
        let all = emergencies + builds.waiting.len() as u64;
        let Some(known) = self.0.filter(|known| known.record.groups.contains_key(group)) else { return all };
        let totals = QuotaTotals::of(&known.quotas);
        let Allowance::Governed { mut types, .. } =
            Allowance::of(group, &known.quotas, &totals, &known.record)
        else {
            return all;
        };
        for governed in types.values_mut() {
            (governed.target, governed.sp) = (governed.limit, governed.limit);
        }
        let allowance = Allowance::governed(types);
        let mut in_progress = Occupancy::default();
        for build in builds.running.into_iter().chain(builds.emergencies) {
            for (kind, amount) in allowance.counted(build).iter() {
                in_progress.add(kind, amount);
            }
        }
        builds.waiting.sort_unstable_by_key(|(since, _)| *since);
        let queue = builds.waiting.iter().map(|(_, build)| *build);
        emergencies + allowance.startable(queue, &in_progress).len() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::{Esu, ExecutorType, Governed, Millis, Quota};

    use super::*;

    fn x86(units: f64) -> Occupancy {
        Occupancy::of_each([ExecutorType::x86()], Esu::new(units).unwrap())
    }

    fn gpu() -> ExecutorType {
        "gpu".parse().unwrap()
    }

    fn governance(limit: f64) -> Governance {
        let group: Group = "g".parse().unwrap();
        let mut known = Governance::default();
        known.quotas.groups.insert(group.clone(), Quota { esu: x86(limit) });
        let governed = Governed { limit: Esu::new(limit).unwrap(), ..Governed::default() };
        known.record.at_ms = Millis(1);
        // As the governor writes it: the limit of a type without quotas is zero.
        let types = [(ExecutorType::x86(), governed), (gpu(), Governed::default())];
        known.record.groups.insert(group, BTreeMap::from(types));
        known
    }

    fn startable(known: Option<&Governance>, group: &str, running: u64, waiting: u64, each: f64) -> u64 {
        let one = x86(each);
        let mut builds = GroupBuilds::default();
        (0..running).for_each(|_| builds.add_running(&one));
        (0..waiting).for_each(|at| builds.add_waiting(Priority::Batch, Sequence(at), &one));
        Limits(known).startable(&group.parse().unwrap(), builds)
    }

    #[test]
    fn a_build_of_another_type_hides_none_of_the_others() {
        let (known, both) = (governance(6.0), Occupancy::of_each([ExecutorType::x86(), gpu()], Esu::ONE));
        let (one, group) = (x86(1.0), "g".parse().unwrap());
        let mut builds = GroupBuilds::default();
        builds.add_waiting(Priority::Batch, Sequence(0), &both);
        (1..40).for_each(|at| builds.add_waiting(Priority::Batch, Sequence(at), &one));
        assert_eq!(Limits(Some(&known)).startable(&group, builds), 6, "no group has a quota of gpu");
        // A build that waits for an exhausted type leaves the others their room, less its own estimate.
        let mut known = governance(6.0);
        known.quotas.groups.insert(group.clone(), Quota { esu: both.clone() });
        let governed = Governed { limit: Esu::ONE, ..Governed::default() };
        known.record.groups.get_mut(&group).unwrap().insert(gpu(), governed);
        let mut builds = GroupBuilds::default();
        builds.add_running(&both);
        builds.add_waiting(Priority::Batch, Sequence(0), &both);
        (1..40).for_each(|at| builds.add_waiting(Priority::Batch, Sequence(at), &one));
        assert_eq!(Limits(Some(&known)).startable(&group, builds), 4);
    }

    #[test]
    fn without_quotas_all_can_start() {
        assert_eq!(startable(None, "g", 0, 40, 1.0), 40);
        assert_eq!(startable(Some(&Governance::default()), "g", 0, 40, 1.0), 40);
        assert_eq!(startable(Some(&governance(3.0)), "other", 0, 40, 1.0), 40, "nothing is decided about it");
    }

    #[test]
    fn a_group_can_start_what_its_quota_has_room_for() {
        let known = governance(6.0);
        assert_eq!(startable(Some(&known), "g", 0, 40, 1.0), 6);
        assert_eq!(startable(Some(&known), "g", 4, 40, 1.0), 2);
        assert_eq!(startable(Some(&known), "g", 4, 1, 1.0), 1);
        assert_eq!(startable(Some(&known), "g", 9, 40, 1.0), 0, "its quota was lowered");
        assert_eq!(startable(Some(&known), "g", 0, 40, 2.0), 3);
    }

    #[test]
    fn every_emergency_starts_and_leaves_the_others_less() {
        let (known, one) = (governance(6.0), x86(1.0));
        let mut builds = GroupBuilds::default();
        (0..4).for_each(|_| builds.add_running(&one));
        (0..40).for_each(|at| builds.add_waiting(Priority::Batch, Sequence(at), &one));
        builds.add_waiting(Priority::Emergency, Sequence(40), &one);
        assert_eq!(Limits(Some(&known)).startable(&"g".parse().unwrap(), builds), 1 + 1);
    }

    #[test]
    fn a_build_that_is_larger_than_the_quota_starts_alone() {
        let known = governance(0.5);
        assert_eq!(startable(Some(&known), "g", 0, 40, 1.0), 1);
        assert_eq!(startable(Some(&known), "g", 1, 40, 1.0), 0);
        assert_eq!(
            startable(Some(&governance(0.0)), "g", 0, 40, 1.0),
            0,
            "no own quota, and nothing to borrow"
        );
    }
}
