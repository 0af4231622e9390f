//! Chance for workloads: streams of numbers by name, and the distributions of the thesis.

use policy::Random;

/// Draws for one purpose of one workload and seed, independent of all others.
pub(crate) fn stream(seed: u64, workload: &str, purpose: &str) -> Random {
    let texts = workload.bytes().chain([b'/']).chain(purpose.bytes());
    let name = texts.fold(seed, |state, byte| Random::new(state ^ u64::from(byte)).next_u64());
    Random::new(name)
}

/// A number of a normal distribution (by the method of Box and Muller).
pub(crate) fn normal(random: &mut Random, mean: f64, deviation: f64) -> f64 {
    // 1 − x is never 0, of which there is no logarithm.
    let length = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    mean + deviation * length * (std::f64::consts::TAU * random.unit()).cos()
}

/// A whole number of milliseconds of an exponential distribution, rounded down.
pub(crate) fn exponential_ms(random: &mut Random, mean_ms: f64) -> u64 {
    whole_ms(-mean_ms * (1.0 - random.unit()).ln())
}

/// Milliseconds without their fraction; 0 for what is negative.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast to u64 saturates, and that is meant"
)]
pub(crate) fn whole_ms(milliseconds: f64) -> u64 {
    milliseconds as u64
}

/// A number without its fraction; 0 for what is negative.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast to usize saturates, and that is meant"
)]
pub(crate) fn whole(number: f64) -> usize {
    number as usize
}
