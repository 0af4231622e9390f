use proptest::prelude::*;

use super::*;

fn head(weight: u64, builds: impl IntoIterator<Item = u32>) -> GroupHead<u32> {
    GroupHead { weight, emergencies: VecDeque::new(), builds: builds.into_iter().collect() }
}

fn idle(count: usize) -> IdleWorkspaces {
    IdleWorkspaces { usable: count, all: count, kept: 0 }
}

#[test]
fn groups_are_chosen_in_proportion_to_their_weight() {
    let mut random = Random::new(7);
    let mut share = 0;
    for _ in 0..4000 {
        let placed = place(vec![head(3, [1]), head(1, [2])], idle(1), |_| true, &mut random);
        share += usize::from(placed[0].group == 0);
    }
    assert!((2880..=3120).contains(&share), "{share} of 4000");
}

#[test]
fn who_has_no_build_leaves_its_places_to_others() {
    let placed = place(vec![head(1_000_000, []), head(1, 0..3)], idle(5), |_| true, &mut Random::new(1));
    assert_eq!(placed.iter().map(|p| (p.group, p.build)).collect::<Vec<_>>(), [(1, 0), (1, 1), (1, 2)]);
}

#[test]
fn a_build_that_no_workspace_can_run_leaves_its_place_to_the_next() {
    let placed =
        place(vec![head(1, 0..4), head(1, [])], idle(2), |build| build % 2 == 1, &mut Random::new(1));
    assert_eq!(placed.iter().map(|placement| placement.build).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn weights_follow_the_quota_of_x86_and_nobody_has_none() {
    let quota = |text: &[(&str, f64)]| Quota {
        esu: text.iter().map(|(kind, units)| (kind.parse().unwrap(), Esu::new(*units).unwrap())).collect(),
    };
    let of = |text: &[(&str, f64)]| weight(Some(&quota(text)));
    assert_eq!(of(&[("x86", 30.0)]), 3 * of(&[("x86", 10.0), ("gpu", 500.0)]));
    assert!(of(&[("gpu", 50.0)]) > 0 && of(&[]) > 0 && weight(None) > 0);
}

#[test]
fn many_groups_are_drawn_by_weight_too() {
    let mut weights = vec![1; 999];
    weights.push(999);
    let drawn = draws(&weights, 20_000, &mut Random::new(3));
    let heavy = drawn.iter().filter(|at| **at == 999).count();
    assert!((9_600..=10_400).contains(&heavy), "{heavy} of 20000");
    assert!(draws(&[0, 0], 5, &mut Random::new(1)).is_empty());
    assert!(draws(&[0, 7, 0], 5, &mut Random::new(1)).iter().all(|at| *at == 1));
}

proptest! {
    #[test]
    fn each_group_keeps_its_order_and_nothing_is_placed_twice(
        weights in prop::collection::vec((0_u64..5, 0_u32..6), 0..8), workspaces in 0_usize..20, seed: u64,
    ) {
        let groups: Vec<_> = weights.iter().map(|(weight, count)| head(*weight, 0..*count)).collect();
        let available: usize = groups.iter().filter(|g| g.weight > 0).map(|g| g.builds.len()).sum();
        let placed = place(groups, idle(workspaces), |_| true, &mut Random::new(seed));
        prop_assert!(placed.len() <= workspaces.min(available));
        for (group, _) in weights.iter().enumerate() {
            let order: Vec<u32> = placed.iter().filter(|p| p.group == group).map(|p| p.build).collect();
            let count = u32::try_from(order.len()).unwrap();
            prop_assert_eq!(order, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn emergencies_come_first_and_others_leave_what_is_kept(
        counts in prop::collection::vec((1_u64..5, 0_u32..4, 0_u32..4), 0..6),
        usable in 0_usize..12, hidden in 0_usize..4, kept in 0_usize..8, seed: u64,
    ) {
        let groups: Vec<_> = counts
            .iter()
            .map(|(weight, urgent, others)| GroupHead {
                weight: *weight,
                emergencies: (0..*urgent).collect(),
                builds: (100..100 + *others).collect(),
            })
            .collect();
        let count = |of: fn(&GroupHead<u32>) -> usize| groups.iter().map(of).sum::<usize>();
        let (urgent, others) = (count(|it| it.emergencies.len()), count(|it| it.builds.len()));
        let idle = IdleWorkspaces { usable, all: usable + hidden, kept };
        let placed = place(groups, idle, |_| true, &mut Random::new(seed));
        let first = placed.iter().take_while(|placement| placement.build < 100).count();
        prop_assert_eq!(first, urgent.min(usable), "no emergency waits for another build");
        prop_assert!(placed[first..].iter().all(|placement| placement.build >= 100));
        let left = usable - first;
        prop_assert_eq!(placed.len() - first, others.min(left).min((left + hidden).saturating_sub(kept)));
    }
}
