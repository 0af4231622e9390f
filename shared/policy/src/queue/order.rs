//! The order of one queue.

use model::BandOrder;

/// What a build is taken for of which nobody knows how long it runs. Milliseconds.
pub const UNKNOWN_ESTIMATE_MS: u64 = 60_000;

/// Below this, a deadline leaves no time beyond the run itself. Milliseconds; section 3.5.1 of the thesis.
const SHORT_MS: u64 = 15_000;
/// Below this, it leaves [`EXTRA_MS`]; from here on, as long again as the run.
const MIDDLE_MS: u64 = 45_000;
const EXTRA_MS: u64 = 15_000;

/// Where by ageing a class of longer work begins: half of the allowance is reached there. Milliseconds.
const STEPS_MS: [u64; 3] = [1_500, 75_000, 3_750_000];
/// For how long work yields to that of the next shorter class. Milliseconds.
const ALLOWANCE_MS: u64 = 1_000_000;

/// Something that waits in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Where it came in among all: a number that only grows. Decides between equals.
    pub position: u64,
    /// When it came. Milliseconds, since the epoch or since a simulation began.
    pub arrived_ms: u64,
    /// How long it is expected to run. Milliseconds.
    pub estimate_ms: u64,
    /// Workers that can run it. 0: not known.
    pub flexibility: u32,
}

/// Where something stands in a queue: the smallest starts first. No two are equal while positions are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderKey {
    first: u64,
    second: u64,
    position: u64,
}

/// Where `waiting` stands by `order`, exactly. [`crate::band_rank`] is the same in 48 bits.
pub fn order_key(order: BandOrder, waiting: &Waiting) -> OrderKey {
    let (first, second) = match order {
        BandOrder::Fcfs => (0, 0),
        BandOrder::Spt => (waiting.estimate_ms, 0),
        BandOrder::Edf => (deadline_ms(waiting.arrived_ms, waiting.estimate_ms), 0),
        // The third rule of OAGM, longest first, has nothing left to decide: the first is the time itself.
        BandOrder::Oagm => (waiting.estimate_ms, u64::from(waiting.flexibility)),
        BandOrder::LeastFlex => (u64::from(waiting.flexibility), 0),
        BandOrder::SptAged => (aged_ms(waiting.arrived_ms, waiting.estimate_ms), 0),
    };
    OrderKey { first, second, position: waiting.position }
}

/// Until when something is to be done that arrived then and is expected to run so long, all in milliseconds (section 3.5.1
/// of the thesis).
pub fn deadline_ms(arrived_ms: u64, estimate_ms: u64) -> u64 {
    let allowed = match estimate_ms {
        ..SHORT_MS => estimate_ms,
        SHORT_MS..MIDDLE_MS => estimate_ms.saturating_add(EXTRA_MS),
        MIDDLE_MS.. => estimate_ms.saturating_mul(2),
    };
    arrived_ms.saturating_add(allowed)
}

/// What stands for the arrival of something when shorter work goes first but nothing is overtaken for ever: it counts as so much
/// later as it is allowed to be overtaken, in milliseconds. Whoever has the earlier moment starts first.
///
/// That allowance grows with the estimate in three steps, at 1.5 s, 75 s and 62 min, each of 1000 s: inside a class it
/// is nearly flat. So work yields for a bounded time to what is of a shorter class, and goes by arrival among its like. Allowances
/// in proportion to the estimate, or to its logarithm, were measured to be worse: long work differs too much among itself,
/// and the longest waits long while shorter work of its class gains little (`docs/simulator.md`).
pub fn aged_ms(arrived_ms: u64, estimate_ms: u64) -> u64 {
    STEPS_MS.iter().fold(arrived_ms, |moment, step| moment.saturating_add(allowance_ms(estimate_ms, *step)))
}

/// `ALLOWANCE_MS · x⁴ / (1 + x⁴)`, where x is the estimate as a multiple of `step_ms`.
fn allowance_ms(estimate_ms: u64, step_ms: u64) -> u64 {
    // In thousandths; beyond a hundred steps nothing changes any more.
    let multiple = u128::from((estimate_ms.saturating_mul(1000) / step_ms).min(100_000));
    let fourth = multiple.pow(4);
    let allowance = u128::from(ALLOWANCE_MS) * fourth / (fourth + 1000_u128.pow(4));
    u64::try_from(allowance).unwrap_or(ALLOWANCE_MS)
}
