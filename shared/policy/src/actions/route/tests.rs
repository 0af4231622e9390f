use proptest::prelude::*;

use super::*;

fn candidates(loads: &[f64]) -> Vec<Candidate> {
    let one = |(index, load): (usize, &f64)| Candidate {
        executor: format!("executor-{index}").parse().unwrap(),
        home: home(index),
        capacity: Resources::new(4000, 1000),
        load: *load,
    };
    loads.iter().enumerate().map(one).collect()
}

fn home(index: usize) -> ExecutorHome {
    format!("home-{index}").parse().unwrap()
}

const ALL: Routing = Routing { probes: 3, affinity: true, load_aware: true };
const SMALL: Resources =
    Resources { cpu_millis: 1000, memory_bytes: 100, custom: std::collections::BTreeMap::new() };

#[test]
fn those_where_it_is_warm_come_first() {
    let all = candidates(&[0.0, 0.0, 9.0, 0.0, 9.0]);
    let notified = route(&SMALL, &[home(4), home(2)], &[], &all, ALL, &mut Random::new(1));
    assert_eq!(notified[..2], [4, 2]);
    let off = Routing { affinity: false, ..ALL };
    let first = |seed| route(&SMALL, &[home(4)], &[], &all, off, &mut Random::new(seed))[0];
    assert!((0..50).filter(|seed| first(*seed) == 4).count() < 15);
}

#[test]
fn what_can_never_hold_it_is_not_told() {
    let mut all = candidates(&[0.0; 4]);
    all[1].capacity = Resources::new(500, 1000);
    for seed in 0..20 {
        assert!(!route(&SMALL, &[home(1)], &[], &all, ALL, &mut Random::new(seed)).contains(&1));
    }
    let huge = Resources::new(1, 5000);
    assert!(route(&huge, &[], &[], &all, ALL, &mut Random::new(1)).is_empty());
}

#[test]
fn the_emptier_of_two_is_taken() {
    let all = candidates(&[0.9, 0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1]);
    let firsts = |routing| {
        let first = |seed| route(&SMALL, &[], &[], &all, routing, &mut Random::new(seed))[0];
        (0..1000).filter(|seed| first(*seed) >= 4).count()
    };
    // Three of four pairs have an empty one among them.
    assert!((700..800).contains(&firsts(ALL)));
    assert!((440..560).contains(&firsts(Routing { load_aware: false, ..ALL })));
}

#[test]
fn an_executor_that_failed_it_comes_last() {
    let all = candidates(&[0.0; 4]);
    let avoid = [all[0].executor.clone()];
    for seed in 0..20 {
        assert!(!route(&SMALL, &[], &avoid, &all, ALL, &mut Random::new(seed)).contains(&0));
    }
    assert_eq!(route(&SMALL, &[], &avoid, &all[..1], ALL, &mut Random::new(1)), [0]);
}

#[test]
fn warmth_is_forgotten_after_a_failure_and_outlives_one_other_success() {
    let mut warmth = Warmth::new(100);
    let keys = [ActionKey(1), ActionKey(2)];
    warmth.learn(&keys, &home(1), true);
    warmth.learn(&keys[1..], &home(2), true);
    assert_eq!(warmth.homes(&keys), [home(1), home(2)]);
    warmth.learn(&keys[..1], &home(1), false);
    assert_eq!(warmth.homes(&keys[..1]), []);
    warmth.learn(&[ActionKey(3)], &home(1), false);
    assert_eq!(warmth.homes(&[ActionKey(3)]), []);
}

#[test]
fn what_was_used_longest_ago_is_forgotten_first() {
    let mut warmth = Warmth::new(3);
    for key in [1, 2, 3, 1, 4] {
        warmth.learn(&[ActionKey(key)], &home(0), true);
    }
    assert_eq!(warmth.homes(&[ActionKey(2)]), []);
    assert_eq!(warmth.homes(&[ActionKey(1)]), [home(0)]);
    for _ in 0..1000 {
        warmth.learn(&[ActionKey(4)], &home(0), true);
    }
    assert!(warmth.len() <= 3 && warmth.order.len() <= 6);
}

proptest! {
    #[test]
    fn each_is_told_once_and_as_many_as_can_be(
        loads in prop::collection::vec(0.0..2.0_f64, 0..12), probes in 1_usize..5, seed in any::<u64>(), warm in prop::collection::vec(0_usize..14, 0..3),
    ) {
        let all = candidates(&loads);
        let warm: Vec<_> = warm.into_iter().map(home).collect();
        let notified = route(&SMALL, &warm, &[], &all, Routing { probes, ..ALL }, &mut Random::new(seed));
        let distinct: std::collections::HashSet<_> = notified.iter().collect();
        prop_assert_eq!(distinct.len(), notified.len());
        prop_assert_eq!(notified.len(), probes.min(all.len()));
        prop_assert!(notified.iter().all(|index| *index < all.len()));
    }
}
