//! What may start at all: builds that wait for their group's quota do not start sooner with more workers.

use std::collections::BTreeMap;

use model::{ExecutorType, Group, Occupancy};
use service::Governance;

/// What the builds of a group hold and want, in ESU.
#[derive(Debug, Default)]
pub(crate) struct Held {
    held: BTreeMap<ExecutorType, f64>,
    wanted: BTreeMap<ExecutorType, f64>,
}

impl Held {
    /// A build runs.
    pub(crate) fn has(&mut self, occupancy: &Occupancy) {
        add(&mut self.held, occupancy);
    }

    /// A build waits.
    pub(crate) fn wants(&mut self, occupancy: &Occupancy) {
        add(&mut self.wanted, occupancy);
    }
}

fn add(sums: &mut BTreeMap<ExecutorType, f64>, occupancy: &Occupancy) {
    for (kind, amount) in occupancy.iter() {
        *sums.entry(kind.clone()).or_default() += amount.or_zero().units();
    }
}

/// What groups may have in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits<'a>(pub(crate) Option<&'a Governance>);

impl Limits<'_> {
    /// Of `waiting` builds of `group`, how many its quota lets start beside what it has, whatever workers there are. All,
    /// where nothing is governed or the governor has not decided about the group yet.
    pub(crate) fn startable(self, group: &Group, held: &Held, waiting: u64) -> u64 {
        let governed = self.0.filter(|known| !known.quotas.is_empty());
        let Some(types) = governed.and_then(|known| known.record.groups.get(group)) else { return waiting };
        let mut most = waiting;
        for (kind, wanted) in &held.wanted {
            let limit = types.get(kind).map_or(0.0, |governed| governed.limit.or_zero().units());
            if limit <= 0.0 {
                return 0;
            }
            // One that wants more than the group can ever have counts as that much.
            let each = (wanted / waiting.max(1) as f64).min(limit);
            let has = held.held.get(kind).copied().unwrap_or_default();
            let least = u64::from(has <= 0.0);
            most = most.min(whole((limit - has) / each.max(1e-6), waiting).max(least));
        }
        most
    }
}

/// Rounded down, from 0 to `most`.
fn whole(count: f64, most: u64) -> u64 {
    let seconds = std::time::Duration::try_from_secs_f64((count + 1e-9).max(0.0));
    seconds.map_or(most, |all| all.as_secs().min(most))
}

#[cfg(test)]
mod tests {
    use model::{Esu, Governed, Millis, Quota};

    use super::*;

    fn x86(units: f64) -> Occupancy {
        Occupancy::of_each([ExecutorType::x86()], Esu::new(units).unwrap())
    }

    fn governance(limit: f64) -> Governance {
        let group: Group = "g".parse().unwrap();
        let mut known = Governance::default();
        known.quotas.groups.insert(group.clone(), Quota { esu: x86(limit) });
        let governed = Governed { limit: Esu::new(limit).unwrap(), ..Governed::default() };
        known.record.at_ms = Millis(1);
        known.record.groups.insert(group, BTreeMap::from([(ExecutorType::x86(), governed)]));
        known
    }

    fn startable(known: Option<&Governance>, group: &str, running: u64, waiting: u64, each: f64) -> u64 {
        let mut held = Held::default();
        (0..running).for_each(|_| held.has(&x86(each)));
        (0..waiting).for_each(|_| held.wants(&x86(each)));
        Limits(known).startable(&group.parse().unwrap(), &held, waiting)
    }

    #[test]
    fn without_quotas_all_can_start() {
        assert_eq!(startable(None, "g", 0, 40, 1.0), 40);
        assert_eq!(startable(Some(&Governance::default()), "g", 0, 40, 1.0), 40);
        assert_eq!(startable(Some(&governance(3.0)), "other", 0, 40, 1.0), 40, "nothing is decided of it");
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
    fn a_build_that_is_larger_than_the_quota_starts_alone() {
        let known = governance(0.5);
        assert_eq!(startable(Some(&known), "g", 0, 40, 1.0), 1);
        assert_eq!(startable(Some(&known), "g", 1, 40, 1.0), 0);
        assert_eq!(
            startable(Some(&governance(0.0)), "g", 0, 40, 1.0),
            0,
            "none of its own, and nothing to borrow"
        );
    }
}
