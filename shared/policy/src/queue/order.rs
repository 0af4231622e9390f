//! The order of items in one queue.

use invariant::Present as _;
use model::BandOrder;

/// Assumed run time in milliseconds of a build without an estimate.
pub const UNKNOWN_ESTIMATE_MS: u64 = 60_000;

/// Estimate in milliseconds below which a deadline leaves no time beyond the run itself (section 3.5.1 of the thesis).
const SHORT_MS: u64 = 15_000;
/// Estimate in milliseconds below which the deadline leaves [`EXTRA_MS`]; from here on, it leaves the run time again.
const MIDDLE_MS: u64 = 45_000;
const EXTRA_MS: u64 = 15_000;

/// Estimates in milliseconds at which classes of longer work begin under ageing: half of the
/// allowance is reached there.
const STEPS_MS: [u64; 3] = [1_500, 75_000, 3_750_000];
/// How long in milliseconds work yields to that of the next shorter class.
const ALLOWANCE_MS: u64 = 1_000_000;

/// An item that waits in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Position of arrival among all items: a strictly increasing number that breaks ties.
    pub position: u64,
    /// Time of arrival in milliseconds, since the epoch or since the start of a simulation.
    pub arrived_ms: u64,
    /// Expected run time in milliseconds.
    pub estimate_ms: u64,
    /// Number of workers that can run it; 0 if unknown.
    pub flexibility: u32,
}

/// Sort key of an item in a queue: the smallest starts first. Keys are distinct if the positions are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderKey {
    first: u64,
    second: u64,
    position: u64,
}

/// The exact sort key of `waiting` under `order`. [`crate::band_rank`] is the same in 48 bits.
pub fn order_key(order: BandOrder, waiting: &Waiting) -> OrderKey {
    let (first, second) = match order {
        BandOrder::Fcfs => (0, 0),
        BandOrder::Spt => (waiting.estimate_ms, 0),
        BandOrder::Edf => (deadline_ms(waiting.arrived_ms, waiting.estimate_ms), 0),
        // The third rule of OAGM, longest first, never applies: the first rule already compares the time itself.
        BandOrder::Oagm => (waiting.estimate_ms, u64::from(waiting.flexibility)),
        BandOrder::LeastFlex => (u64::from(waiting.flexibility), 0),
        BandOrder::SptAged => (aged_ms(waiting.arrived_ms, waiting.estimate_ms), 0),
    };
    OrderKey { first, second, position: waiting.position }
}

/// The deadline of an item with this arrival and expected run time, all in milliseconds (section 3.5.1 of the thesis).
pub fn deadline_ms(arrived_ms: u64, estimate_ms: u64) -> u64 {
    let allowed = match estimate_ms {
        ..SHORT_MS => estimate_ms,
        SHORT_MS..MIDDLE_MS => estimate_ms.saturating_add(EXTRA_MS),
        MIDDLE_MS.. => estimate_ms.saturating_mul(2),
    };
    arrived_ms.saturating_add(allowed)
}

/// Effective arrival time of an item when shorter work goes first but nothing is overtaken indefinitely:
/// its arrival plus the time for which it may be overtaken, in milliseconds. The item with the earlier
/// effective arrival starts first.
///
/// That allowance grows with the estimate in three steps, at 1.5 s, 75 s and 62 min, each of 1000 s: inside a class it
/// is nearly constant. So work yields to shorter classes for a bounded time, and is ordered by arrival inside its
/// class. Allowances in proportion to the estimate, or to its logarithm, were measured to be worse: long work varies
/// too much, and the longest items wait long while shorter items of their class gain little (`docs/simulator.md`).
pub fn aged_ms(arrived_ms: u64, estimate_ms: u64) -> u64 {
    STEPS_MS.iter().fold(arrived_ms, |moment, step| moment.saturating_add(allowance_ms(estimate_ms, *step)))
}

/// The formula is `ALLOWANCE_MS · x⁴ / (1 + x⁴)`, where x is the estimate as a multiple of `step_ms`.
fn allowance_ms(estimate_ms: u64, step_ms: u64) -> u64 {
    // Computed in thousandths; above a hundred steps the result is constant.
    let multiple = u128::from((estimate_ms.saturating_mul(1000) / step_ms).min(100_000));
    let fourth = multiple.pow(4);
    let allowance = u128::from(ALLOWANCE_MS) * fourth / (fourth + 1000_u128.pow(4));
    u64::try_from(allowance).present_or(ALLOWANCE_MS, "an allowance within its limit")
}
