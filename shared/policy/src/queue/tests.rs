use model::BandOrder;
use proptest::prelude::*;

use super::*;
use crate::Random;

fn waiting(position: u64, arrived_ms: u64, estimate_ms: u64, flexibility: u32) -> Waiting {
    Waiting { position, arrived_ms, estimate_ms, flexibility }
}

fn first(order: BandOrder, waiting: &[Waiting]) -> u64 {
    waiting.iter().min_by_key(|one| order_key(order, one)).unwrap().position
}

#[test]
fn each_order_starts_what_it_is_named_for() {
    let long_before = waiting(1, 0, 60_000, 4);
    let short = waiting(2, 1000, 500, 4);
    let choosy = waiting(3, 2000, 20_000, 1);
    let all = [long_before, short, choosy];
    assert_eq!(first(BandOrder::Fcfs, &all), 1);
    assert_eq!(first(BandOrder::Spt, &all), 2);
    assert_eq!(first(BandOrder::LeastFlex, &all), 3);
    assert_eq!(first(BandOrder::Edf, &all), 2);
    assert_eq!(first(BandOrder::SptAged, &all), 2);
    assert_eq!(first(BandOrder::Oagm, &[waiting(1, 0, 500, 4), waiting(2, 9, 500, 1)]), 2);
}

#[test]
fn deadlines_are_those_of_the_thesis() {
    assert_eq!(deadline_ms(1000, 14_999), 15_999);
    assert_eq!(deadline_ms(1000, 15_000), 31_000);
    assert_eq!(deadline_ms(1000, 44_999), 60_999);
    assert_eq!(deadline_ms(1000, 45_000), 91_000);
}

#[test]
fn by_ageing_nothing_is_overtaken_for_ever() {
    let longest = waiting(1, 0, 49 * 86_400_000, 1);
    let far = u64::from(u32::MAX) * 1000;
    assert_eq!(first(BandOrder::SptAged, &[longest, waiting(2, far, 1, 1)]), 1);
    assert_eq!(first(BandOrder::Spt, &[longest, waiting(2, far, 1, 1)]), 2);
    // It yields for an hour at most: three steps of 1000 s.
    assert_eq!(first(BandOrder::SptAged, &[longest, waiting(2, 3_000_001, 1, 1)]), 1);
    assert_eq!(first(BandOrder::SptAged, &[longest, waiting(2, 2_990_000, 1, 1)]), 2);
}

proptest! {
    #[test]
    fn no_two_stand_at_the_same_place_and_equals_go_in_order_of_arrival(
        estimate_ms in 0..1_000_000_u64, flexibility in 0..9_u32, position in 0..1000_u64
    ) {
        let (a, b) = (waiting(position, 5, estimate_ms, flexibility), waiting(position + 1, 5, estimate_ms, flexibility));
        for order in BandOrder::ALL {
            prop_assert!(order_key(order, &a) < order_key(order, &b));
        }
    }

    #[test]
    fn who_is_longer_yields_longer_by_ageing(a in 0..u64::MAX / 2, b in 0..100_000_000_u64) {
        let (shorter, longer) = (a.min(b), a.max(b));
        prop_assert!(aged_ms(7, shorter) <= aged_ms(7, longer));
        prop_assert!(aged_ms(7, longer) <= 7 + 3_000_000);
    }

    #[test]
    fn the_least_loaded_worker_is_no_worse_than_any_and_idle_if_it_can_be(
        loads in prop::collection::vec((0..4_u64, any::<bool>()), 1..9)
    ) {
        let workers: Vec<WorkerLoad> = (0..).zip(&loads)
            .map(|(number, (load, idle))| WorkerLoad { number, load: *load, idle: *idle && *load == 0 })
            .collect();
        let chosen = workers[least_loaded(workers.iter().copied()).unwrap() as usize];
        for other in &workers {
            prop_assert!(chosen.load <= other.load);
            prop_assert!(chosen.load < other.load || chosen.idle || !other.idle);
            let equal = chosen.load == other.load && chosen.idle == other.idle;
            prop_assert!(!equal || chosen.number <= other.number);
        }
    }

    #[test]
    fn two_workers_by_chance_are_two(count in 2..50_usize, seed: u64) {
        let (a, b) = two_of(count, &mut Random::new(seed)).unwrap();
        prop_assert!(a < b && b < count);
    }
}

#[test]
fn every_pair_of_workers_is_as_likely_as_any() {
    let mut random = Random::new(1);
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..60_000 {
        *counts.entry(two_of(4, &mut random).unwrap()).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 6);
    assert!(counts.values().all(|count| (9_600..10_400).contains(count)), "{counts:?}");
    assert_eq!(two_of(1, &mut random), None);
}

#[test]
fn turns_go_round() {
    let turns = [(0, 7), (1, 5), (2, 9)].map(|(number, last)| Turn { number, last });
    assert_eq!(next_in_turn(turns), Some(1));
    assert_eq!(next_in_turn([]), None);
}
