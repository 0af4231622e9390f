//! The order of a group's executions of the same rank, for the index.

use model::{ActionOrder, BandOrder};

use crate::queue::{Waiting, aged_ms, charge, deadline_ms, level};

/// Number of bits of a fixed place: the index has 38 bits for it, below the rank.
const BITS: u32 = 38;
/// Start of packed times: 1 January 2020, in milliseconds since the epoch.
const BASE_MS: u64 = 1_577_836_800_000;
/// Packed times have steps of 8 ms, so that 38 bits last until the year 2089.
const STEP_LOG2: u32 = 3;
/// Bits of the number of executors, next to an estimate.
const FLEXIBILITY_BITS: u32 = 6;

/// Place of an execution among those of its group and rank. Executions with the same place run in the order of arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Its flow takes turns with the others by the cost of their executions (start-time fair queueing).
    Turn {
        /// Name of the flow inside the group.
        flow: String,
        /// Cost that it adds to the flow, at least 1.
        charge: u64,
    },
    /// The lowest number goes first; below 2^38.
    Fixed(u64),
}

/// The place of an execution of this client's `invocation`. `length` is its cost in thousandths of ESU times seconds.
pub fn place(order: ActionOrder, invocation: &str, length: u64, waiting: &Waiting) -> Place {
    match order {
        ActionOrder::Turns => Place::Turn { flow: invocation.to_owned(), charge: length.max(1) },
        ActionOrder::MultiLevel => {
            let level = level(waiting.estimate_ms);
            Place::Turn { flow: format!("level {level}"), charge: charge(level, length).max(1) }
        }
        ActionOrder::Of(order) => Place::Fixed(number(order, waiting).min((1 << BITS) - 1)),
    }
}

fn number(order: BandOrder, waiting: &Waiting) -> u64 {
    let packed = |time_ms: u64| time_ms.saturating_sub(BASE_MS) >> STEP_LOG2;
    let flexibility = u64::from(waiting.flexibility);
    match order {
        BandOrder::Fcfs => waiting.position,
        BandOrder::Spt => waiting.estimate_ms,
        BandOrder::Edf => packed(deadline_ms(waiting.arrived_ms, waiting.estimate_ms)),
        BandOrder::Oagm => {
            let most = (1 << FLEXIBILITY_BITS) - 1;
            (waiting.estimate_ms << FLEXIBILITY_BITS) | flexibility.min(most)
        }
        BandOrder::LeastFlex => flexibility,
        BandOrder::SptAged => packed(aged_ms(waiting.arrived_ms, waiting.estimate_ms)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::queue::order_key;

    fn fixed(order: BandOrder, waiting: &Waiting) -> u64 {
        match place(ActionOrder::Of(order), "", 1, waiting) {
            Place::Fixed(number) => number,
            Place::Turn { .. } => panic!("{order} has a fixed place"),
        }
    }

    #[test]
    fn invocations_or_levels_take_turns() {
        let waiting = Waiting { position: 1, arrived_ms: BASE_MS, estimate_ms: 20_000, flexibility: 1 };
        let turns = place(ActionOrder::Turns, "a", 7, &waiting);
        assert_eq!(turns, Place::Turn { flow: "a".to_owned(), charge: 7 });
        let levels = place(ActionOrder::MultiLevel, "a", 7, &waiting);
        assert_eq!(levels, Place::Turn { flow: "level 2".to_owned(), charge: 28 });
    }

    proptest! {
        #[test]
        fn places_agree_with_the_exact_order(
            (a_arrived, b_arrived) in (0_u64..1 << 40, 0_u64..1 << 40),
            (a_estimate, b_estimate) in (0_u64..1 << 31, 0_u64..1 << 31),
            (a_flexibility, b_flexibility) in (0_u32..64, 0_u32..64),
        ) {
            let waiting = |position, arrived: u64, estimate_ms, flexibility| {
                Waiting { position, arrived_ms: BASE_MS + arrived, estimate_ms, flexibility }
            };
            let (a, b) = (waiting(1, a_arrived, a_estimate, a_flexibility), waiting(2, b_arrived, b_estimate, b_flexibility));
            for order in BandOrder::ALL {
                let (one, other) = (fixed(order, &a), fixed(order, &b));
                prop_assert!(one < 1 << BITS);
                // Equal places run by arrival, which is the last part of the exact key.
                if one != other {
                    prop_assert_eq!(one < other, order_key(order, &a) < order_key(order, &b), "{}", order);
                }
            }
        }
    }
}
