//! Numbers by chance: streams of them by name, and the distributions that workloads are made of.

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

/// A factor of a log-normal distribution with median 1.
pub(crate) fn log_normal(random: &mut Random, sigma: f64) -> f64 {
    normal(random, 0.0, sigma).exp()
}

/// A number of an exponential distribution.
pub(crate) fn exponential(random: &mut Random, mean: f64) -> f64 {
    -mean * (1.0 - random.unit()).ln()
}

/// A whole number of milliseconds of an exponential distribution, rounded down.
pub(crate) fn exponential_ms(random: &mut Random, mean_ms: f64) -> u64 {
    whole_ms(exponential(random, mean_ms))
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
