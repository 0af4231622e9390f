use proptest::prelude::*;

use super::*;
use crate::queue::order_key;

fn waiting() -> impl Strategy<Value = Waiting> {
    // Sums of few parts make it likely that values are equal or differ by little.
    let part = prop_oneof![Just(0_u64), 1..20_u64, 1..2000_u64, 1..100_000_u64];
    let estimate = prop_oneof![part.clone(), 0..100_000_000_u64];
    (part.clone(), part, estimate, 0..5000_u32).prop_map(|(position, late, estimate_ms, flexibility)| {
        Waiting { position, arrived_ms: 1_800_000_000_000 + late, estimate_ms, flexibility }
    })
}

/// Whether the quantum of `order` can distinguish `a` from `b` by the first part of its key.
fn apart(order: BandOrder, a: &Waiting, b: &Waiting) -> bool {
    let estimates = a.estimate_ms.abs_diff(b.estimate_ms) * 512 > a.estimate_ms.max(b.estimate_ms);
    let arrivals = |quantum: u64| a.arrived_ms.abs_diff(b.arrived_ms) >= quantum;
    let agree = (a.position < b.position) == (a.arrived_ms < b.arrived_ms) && a.position != b.position;
    let (low, high) = (a.flexibility.min(b.flexibility), a.flexibility.max(b.flexibility));
    match order {
        BandOrder::Fcfs => a.position != b.position,
        BandOrder::Spt => estimates || (a.estimate_ms == b.estimate_ms && arrivals(128) && agree),
        BandOrder::Edf => {
            deadline_ms(a.arrived_ms, a.estimate_ms) != deadline_ms(b.arrived_ms, b.estimate_ms)
        }
        BandOrder::Oagm => {
            estimates
                || (a.estimate_ms == b.estimate_ms
                    && ((low < 63 && low != high) || (low == high && arrivals(8192) && agree)))
        }
        BandOrder::LeastFlex => (low < 4095 && low != high) || (low == high && arrivals(32) && agree),
        BandOrder::SptAged => aged_ms(a.arrived_ms, a.estimate_ms) != aged_ms(b.arrived_ms, b.estimate_ms),
    }
}

proptest! {
    #[test]
    fn ranks_order_builds_as_exact_keys_do_where_a_quantum_tells_them_apart(a in waiting(), b in waiting()) {
        for order in BandOrder::ALL {
            let (rank_a, rank_b) = (band_rank(order, &a), band_rank(order, &b));
            prop_assert!(rank_a < 1 << 48 && rank_b < 1 << 48);
            if apart(order, &a, &b) {
                prop_assert_eq!(
                    rank_a.cmp(&rank_b), order_key(order, &a).cmp(&order_key(order, &b)), "{} {:?} {:?}", order, a, b
                );
            }
        }
    }

    #[test]
    fn whatever_the_values_a_rank_has_48_bits(
        position: u64, arrived_ms: u64, estimate_ms: u64, flexibility: u32
    ) {
        let waiting = Waiting { position, arrived_ms, estimate_ms, flexibility };
        for order in BandOrder::ALL {
            prop_assert!(band_rank(order, &waiting) < 1 << 48);
        }
    }
}

#[test]
fn by_default_the_first_asked_for_is_the_first_started() {
    let rank = |position, estimate_ms| {
        let waiting = Waiting { position, arrived_ms: 0, estimate_ms, flexibility: 0 };
        band_rank(BandOrder::default(), &waiting)
    };
    assert!(rank(1, 9000) < rank(2, 1));
}
