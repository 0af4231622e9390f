use proptest::prelude::*;

use super::*;

fn groups(heads: &[Vec<u32>]) -> Vec<GroupHead<u32>> {
    heads.iter().map(|builds| GroupHead { builds: builds.iter().copied().collect() }).collect()
}

#[test]
fn groups_take_turns() {
    let placed = place(groups(&[vec![1, 2, 3], vec![10], vec![20, 21]]), (0..5).collect());
    let order: Vec<u32> = placed.iter().map(|p| p.build).collect();
    assert_eq!(order, [1, 10, 20, 2, 21]);
}

proptest! {
    #[test]
    fn inside_a_group_the_given_order_is_kept(
        heads in proptest::collection::vec(proptest::collection::vec(0_u32..100, 0..6), 0..6),
        idle in 0_usize..20,
    ) {
        let placed = place(groups(&heads), (0..idle).collect());
        for (group, head) in heads.iter().enumerate() {
            let started: Vec<u32> = placed.iter().filter(|p| p.group == group).map(|p| p.build).collect();
            prop_assert_eq!(&started[..], &head[..started.len()]);
        }
    }

    #[test]
    fn nothing_waits_while_a_workspace_is_idle(
        heads in proptest::collection::vec(proptest::collection::vec(0_u32..100, 0..6), 0..6),
        idle in 0_usize..20,
    ) {
        let waiting: usize = heads.iter().map(Vec::len).sum();
        let placed = place(groups(&heads), (0..idle).collect());
        prop_assert_eq!(placed.len(), waiting.min(idle));
        let mut used: Vec<usize> = placed.iter().map(|p| p.workspace).collect();
        used.dedup();
        prop_assert_eq!(used.len(), placed.len());
    }

    #[test]
    fn no_group_is_more_than_one_build_ahead_of_another_that_waits(
        heads in proptest::collection::vec(proptest::collection::vec(0_u32..100, 0..6), 1..6),
        idle in 0_usize..20,
    ) {
        let placed = place(groups(&heads), (0..idle).collect());
        let count = |group: usize| placed.iter().filter(|p| p.group == group).count();
        for group in 0..heads.len() {
            if count(group) < heads[group].len() {
                for other in 0..heads.len() {
                    prop_assert!(count(other) <= count(group) + 1);
                }
            }
        }
    }
}
