//! Random numbers: named streams, and the distributions from which workloads are drawn.

use policy::Random;

use crate::statistics::whole;

/// Returns the random stream for one purpose of one workload and seed, independent of all other streams.
pub(crate) fn stream(seed: u64, workload: &str, purpose: &str) -> Random {
    let texts = workload.bytes().chain([b'/']).chain(purpose.bytes());
    let name = texts.fold(seed, |state, byte| Random::new(state ^ u64::from(byte)).next_u64());
    Random::new(name)
}

/// Draws a normally distributed number (Box-Muller method).
pub(crate) fn normal(random: &mut Random, mean: f64, deviation: f64) -> f64 {
    // `1 - x` is never 0, whose logarithm does not exist.
    let length = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    mean + deviation * length * (std::f64::consts::TAU * random.unit()).cos()
}

/// Draws a factor from a log-normal distribution with median 1.
pub(crate) fn log_normal(random: &mut Random, sigma: f64) -> f64 {
    normal(random, 0.0, sigma).exp()
}

/// Draws an exponentially distributed number.
pub(crate) fn exponential(random: &mut Random, mean: f64) -> f64 {
    -mean * (1.0 - random.unit()).ln()
}

/// Draws a whole number of milliseconds from an exponential distribution, rounded down.
pub(crate) fn exponential_ms(random: &mut Random, mean_ms: f64) -> u64 {
    whole(exponential(random, mean_ms))
}
