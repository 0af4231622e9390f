//! Which executors can run which executions: the processing sets of section 3.1 of the thesis on load balancing.

use model::{Pool, Requirements};

use super::admit::DEFAULT_POOL;
use crate::requirements::satisfies;

/// The kinds of executors that can run what has some requirements, of any size. A kind is an index into the list
/// of pools for which the set was computed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessingSet(Vec<Option<u32>>);

impl ProcessingSet {
    /// The processing set of `requirements` among these kinds.
    pub fn of<'a>(requirements: &Requirements, kinds: impl IntoIterator<Item = &'a Pool>) -> Self {
        let special = |pool: &Pool| {
            let is_default = pool.name.as_str() == DEFAULT_POOL && requirements.is_empty();
            let special = pool.properties.len() + pool.capacity.custom.len();
            if is_default { 0 } else { u32::try_from(special).unwrap_or(u32::MAX).saturating_add(1) }
        };
        let kind = |pool: &Pool| satisfies(pool, requirements).then(|| special(pool));
        Self(kinds.into_iter().map(kind).collect())
    }

    /// Whether executors of this kind can run it.
    pub fn contains(&self, kind: usize) -> bool {
        self.special(kind).is_some()
    }

    /// How special executors of this kind are: others are preferred, so that they stay free for executions that need
    /// them. `None` if they cannot run it.
    pub fn special(&self, kind: usize) -> Option<u32> {
        self.0.get(kind).copied().flatten()
    }

    /// The kinds that it contains.
    pub fn kinds(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().filter(|(_, special)| special.is_some()).map(|(kind, _)| kind)
    }
}

/// Divides processing sets into groups such that no two groups have a kind in common: a decision about one group does not
/// depend on the others. Returns the indices of the sets of each group; sets without a kind are in none.
pub fn independent(sets: &[&ProcessingSet]) -> Vec<Vec<usize>> {
    let most = sets.iter().map(|set| set.0.len()).max().unwrap_or_default();
    let mut group_of_kind: Vec<Option<usize>> = vec![None; most];
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (at, set) in sets.iter().enumerate() {
        let mut joined: Vec<usize> = set.kinds().filter_map(|kind| *group_of_kind.get(kind)?).collect();
        joined.sort_unstable();
        joined.dedup();
        let Some(first) = set.kinds().next() else { continue };
        let into = joined.first().copied().unwrap_or(groups.len());
        if into == groups.len() {
            groups.push(Vec::new());
        }
        let mut members = vec![at];
        for other in joined.into_iter().filter(|other| *other != into) {
            members.extend(groups.get_mut(other).map(std::mem::take).unwrap_or_default());
            group_of_kind.iter_mut().filter(|of| **of == Some(other)).for_each(|of| *of = Some(into));
        }
        if let Some(group) = groups.get_mut(into) {
            group.extend(members);
        }
        for kind in std::iter::once(first).chain(set.kinds()) {
            if let Some(of) = group_of_kind.get_mut(kind) {
                *of = Some(into);
            }
        }
    }
    groups.retain(|group| !group.is_empty());
    groups
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use model::{ExecutorType, Resources};
    use proptest::prelude::*;

    use super::*;

    fn pool(name: &str, group: &str) -> Pool {
        Pool {
            name: name.parse().unwrap(),
            properties: [("hwgroup".to_owned(), vec![group.to_owned()])].into(),
            root_is_input: false,
            capacity: Resources::default(),
            executor_type: ExecutorType::x86(),
        }
    }

    fn set(kinds: &[usize]) -> ProcessingSet {
        let most = kinds.iter().max().map_or(0, |most| most + 1);
        ProcessingSet((0..most).map(|kind| kinds.contains(&kind).then_some(1)).collect())
    }

    #[test]
    fn any_of_several_hardware_groups() {
        let kinds = [pool("one", "a"), pool("two", "b"), pool("three", "c")];
        let of = |value: &str| ProcessingSet::of(&Requirements::of([("hwgroup", value)]), &kinds);
        assert_eq!(of("a|b").kinds().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(of("c").kinds().collect::<Vec<_>>(), [2]);
        assert_eq!(of("d").kinds().count(), 0);
    }

    #[test]
    fn what_requires_nothing_prefers_the_default_pool_and_then_the_plainest() {
        let plain = Pool { properties: [].into(), ..pool("plain", "") };
        let kinds = [pool("gpu", "a"), pool("default", "a"), plain];
        let set = ProcessingSet::of(&Requirements::default(), &kinds);
        assert_eq!([0, 1, 2].map(|kind| set.special(kind)), [Some(2), Some(0), Some(1)]);
        let set = ProcessingSet::of(&Requirements::of([("hwgroup", "a")]), &kinds);
        assert_eq!([0, 1, 2].map(|kind| set.special(kind)), [Some(2), Some(2), None]);
    }

    #[test]
    fn sets_that_share_a_kind_are_decided_together() {
        let sets = [set(&[0]), set(&[1]), set(&[2, 3]), set(&[]), set(&[1, 2])];
        let groups = independent(&sets.iter().collect::<Vec<_>>());
        let groups: Vec<BTreeSet<usize>> =
            groups.into_iter().map(|group| group.into_iter().collect()).collect();
        assert_eq!(groups, [[0].into(), [1, 2, 4].into()]);
    }

    proptest! {
        #[test]
        fn each_set_is_in_one_group_and_groups_share_no_kind(
            sets in prop::collection::vec(prop::collection::vec(0_usize..6, 0..4), 0..8),
        ) {
            let sets: Vec<ProcessingSet> = sets.iter().map(|kinds| set(kinds)).collect();
            let groups = independent(&sets.iter().collect::<Vec<_>>());
            let mut all: Vec<usize> = groups.iter().flatten().copied().collect();
            all.sort_unstable();
            let expected: Vec<usize> = (0..sets.len()).filter(|at| sets[*at].kinds().next().is_some()).collect();
            prop_assert_eq!(all, expected);
            let kinds = |group: &Vec<usize>| -> BTreeSet<usize> { group.iter().flat_map(|at| sets[*at].kinds()).collect() };
            for (at, group) in groups.iter().enumerate() {
                for other in &groups[at + 1..] {
                    prop_assert!(kinds(group).is_disjoint(&kinds(other)));
                }
            }
        }
    }
}
