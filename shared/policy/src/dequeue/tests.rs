use proptest::prelude::*;

use super::*;

fn occupancy(text: &str) -> Occupancy {
    let amount = |part: &str| {
        let (kind, units) = part.split_once('=').unwrap();
        (kind.parse().unwrap(), Esu::new(units.parse().unwrap()).unwrap())
    };
    text.split_whitespace().map(amount).collect()
}

/// Indices of the builds that may leave the queue; builds are given as `x86=1 mac=2`.
fn goes(queue: &[&str], target: &str, in_progress: &str) -> Vec<usize> {
    let queue: Vec<Occupancy> = queue.iter().map(|text| occupancy(text)).collect();
    dequeue(&queue, &occupancy(target), &occupancy(in_progress))
}

#[test]
fn what_fits_exactly_goes() {
    assert_eq!(goes(&["x86=50"], "x86=100", "x86=50"), [0]);
    assert_eq!(goes(&["x86=50.000001"], "x86=100", "x86=50"), [0_usize; 0]);
}

#[test]
fn a_throttled_build_keeps_its_place_from_a_cheaper_one() {
    assert_eq!(goes(&["x86=60", "x86=10"], "x86=100", "x86=50"), [0_usize; 0]);
    assert_eq!(goes(&["x86=30", "x86=60", "x86=10"], "x86=100", "x86=50"), [0]);
}

#[test]
fn a_build_short_of_one_type_reserves_the_others_too() {
    assert_eq!(goes(&["x86=10 gpu=1", "x86=10"], "x86=15 gpu=0", ""), [0_usize; 0]);
    assert_eq!(goes(&["x86=10 gpu=1", "x86=5"], "x86=15 gpu=0", ""), [1]);
    assert_eq!(goes(&["x86=1 gpu=1", "x86=1 mac=1"], "x86=2 mac=1", ""), [1]);
}

#[test]
fn past_the_target_not_even_a_build_of_nothing_goes() {
    assert_eq!(goes(&["x86=0"], "x86=10", "x86=11"), [0_usize; 0]);
    assert_eq!(goes(&["x86=0"], "x86=10", "x86=10"), [0]);
}

#[test]
fn a_type_without_target_has_none() {
    assert_eq!(goes(&["mac=1", "mac=0"], "x86=10", ""), [0_usize; 0]);
    assert_eq!(goes(&["mac=0"], "x86=10", ""), [0]);
}

#[test]
fn a_build_of_no_type_always_goes() {
    assert_eq!(goes(&["x86=9", "", "x86=9"], "x86=1", "x86=5"), [1]);
}

#[test]
fn it_says_what_is_lacking() {
    let (target, none) = (occupancy("x86=5 gpu=1"), Occupancy::default());
    let mut state = Dequeue::new(&target, &none);
    let lack = state.consider(&occupancy("x86=2 gpu=3 mac=1")).unwrap_err().types;
    let lack: Vec<_> = lack.iter().map(|l| (l.executor_type.as_str(), l.remaining.units())).collect();
    assert_eq!(lack, [("gpu", 1.0), ("mac", 0.0)]);
    assert!(!state.is_exhausted());
    let _ = state.consider(&occupancy("x86=3"));
    assert!(state.is_exhausted());
}

fn amounts(most: i64) -> impl Strategy<Value = Occupancy> {
    let kind = prop::sample::select(vec!["x86", "mac", "gpu"]).prop_map(|name| name.parse().unwrap());
    prop::collection::btree_map(kind, (0..most).prop_map(Esu::from_micros), 0..3).prop_map(Occupancy)
}

/// The algorithm as printed in the paper, line by line.
fn as_printed(queue: &[Occupancy], target: &Occupancy, in_progress: &Occupancy) -> Vec<usize> {
    let mut dequeueable = Vec::new();
    let mut reserved = std::collections::HashMap::<ExecutorType, i64>::new();
    for (place, build) in queue.iter().enumerate() {
        let mut is_throttled = false;
        for (kind, estimate) in build.iter() {
            let held = reserved.entry(kind.clone()).or_default();
            let remaining = target.get(kind).micros() - in_progress.get(kind).micros() - *held;
            if remaining < estimate.micros() {
                is_throttled = true;
            }
            *held += estimate.micros();
        }
        if !is_throttled {
            dequeueable.push(place);
        }
    }
    dequeueable
}

proptest! {
    #[test]
    fn it_is_the_printed_algorithm(
        queue in prop::collection::vec(amounts(40), 0..20), target in amounts(200), in_progress in amounts(100),
    ) {
        let chosen = dequeue(&queue, &target, &in_progress);
        prop_assert_eq!(&chosen, &as_printed(&queue, &target, &in_progress));
        prop_assert_eq!(&chosen, &dequeue(&queue, &target, &in_progress), "equal inputs, equal outputs");
    }

    #[test]
    fn what_goes_stays_within_the_target(
        queue in prop::collection::vec(amounts(40), 0..20), target in amounts(200), in_progress in amounts(100),
    ) {
        let chosen = dequeue(&queue, &target, &in_progress);
        for kind in ["x86", "mac", "gpu"].map(|name| name.parse::<ExecutorType>().unwrap()) {
            let started: Esu = chosen.iter().map(|place| queue[*place].get(&kind)).sum();
            if chosen.iter().any(|place| queue[*place].0.contains_key(&kind)) {
                prop_assert!(in_progress.get(&kind) + started <= target.get(&kind));
            }
        }
    }

    #[test]
    fn no_later_build_uses_what_a_throttled_one_reserved(
        queue in prop::collection::vec(amounts(40), 1..20), target in amounts(200), in_progress in amounts(100),
    ) {
        let chosen = dequeue(&queue, &target, &in_progress);
        for place in &chosen {
            for (kind, needed) in queue[*place].iter() {
                // All builds ahead, started or throttled, are counted first.
                let before: Esu = queue[..*place].iter().map(|build| build.get(kind)).sum();
                prop_assert!(before + needed <= target.get(kind) - in_progress.get(kind));
            }
        }
    }
}
