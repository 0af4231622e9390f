//! The order of a group's builds of the same priority, encoded as the number that the index sorts them by.

use model::BandOrder;

use crate::queue::{Waiting, aged_ms, deadline_ms};

/// Number of bits of a rank: the index has 48 bits for it, below the priority.
const BITS: u32 = 48;
/// Start of packed arrival times: 1 January 2020, in milliseconds since the epoch.
const BASE_MS: u64 = 1_577_836_800_000;
/// Bits of a packed estimate: 32 octaves of 512 steps each, so that neighbouring values differ by at most 1/512.
const ESTIMATE_BITS: u32 = 14;
const STEPS_LOG2: u32 = 9;
/// Bits of the flexibility beside an estimate, and alone. Larger values are limited to the maximum.
const LITTLE_FLEXIBILITY_BITS: u32 = 6;
const FLEXIBILITY_BITS: u32 = 12;

/// The rank of a build among those of its group and priority: the lowest starts first. Below 2^48.
///
/// It packs [`crate::queue::order_key`] and agrees with it except between builds whose keys differ by
/// less than a quantum:
///
/// | order | packed as | quantum |
/// |---|---|---|
/// | fcfs | position | none |
/// | spt | estimate (14 bits, logarithmic), arrival (34 bits) | 1/512 of the estimate; then 128 ms |
/// | oagm | estimate (14), flexibility (6, at most 63), arrival (28) | 1/512 of the estimate; then 8.2 s |
/// | `least_flex` | flexibility (12, at most 4095), arrival (36) | 32 ms |
/// | edf, spt-aged | the deadline, or the effective arrival time | 1 ms |
///
/// Estimates above 49 days are limited to that; arrivals are limited to the years 2020 to 2089.
pub fn band_rank(order: BandOrder, waiting: &Waiting) -> u64 {
    let rank = match order {
        BandOrder::Fcfs => waiting.position,
        BandOrder::Spt => stack(&[(estimate(waiting), ESTIMATE_BITS)], waiting),
        BandOrder::Edf => deadline_ms(waiting.arrived_ms, waiting.estimate_ms),
        BandOrder::Oagm => stack(
            &[(estimate(waiting), ESTIMATE_BITS), (u64::from(waiting.flexibility), LITTLE_FLEXIBILITY_BITS)],
            waiting,
        ),
        BandOrder::LeastFlex => stack(&[(u64::from(waiting.flexibility), FLEXIBILITY_BITS)], waiting),
        BandOrder::SptAged => aged_ms(waiting.arrived_ms, waiting.estimate_ms),
    };
    rank.min(most(BITS))
}

/// Packs the values from the highest bits down, and the arrival into the remaining bits, as precisely as they allow.
fn stack(above: &[(u64, u32)], waiting: &Waiting) -> u64 {
    let used: u32 = above.iter().map(|(_, bits)| bits).sum();
    let left = BITS - used;
    // The milliseconds of 69 years need 41 bits.
    let arrival = (waiting.arrived_ms.saturating_sub(BASE_MS) >> (41 - left)).min(most(left));
    let top = above.iter().fold(0, |top, (value, bits)| (top << bits) | (*value).min(most(*bits)));
    (top << left) | arrival
}

/// The estimate as a floating-point number of few bits: the octave, then the step in it. Estimates of up to
/// 512 ms are exact.
fn estimate(waiting: &Waiting) -> u64 {
    let octave = waiting.estimate_ms.max(1).ilog2();
    let Some(coarser) = octave.checked_sub(STEPS_LOG2) else { return waiting.estimate_ms };
    let step = (waiting.estimate_ms >> coarser) & most(STEPS_LOG2);
    ((u64::from(coarser) + 1) << STEPS_LOG2) | step
}

fn most(bits: u32) -> u64 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests;
