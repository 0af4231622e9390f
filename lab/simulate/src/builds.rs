//! Randomly generated builds of a quota scenario.

use model::{Esu, ExecutorType, Occupancy};
use policy::Random;

use crate::{
    random::exponential,
    scenario::{BuildMix, Estimator},
    statistics::millis,
};

#[derive(Debug, Clone)]
pub(crate) struct Build {
    /// Estimated occupancy, which the governor sees.
    pub(crate) estimate: Occupancy,
    /// Occupancy in ESU after the ramp.
    pub(crate) esu: f64,
    /// Run time in milliseconds.
    pub(crate) millis: u64,
}

impl Build {
    pub(crate) fn draw(mix: &BuildMix, estimator: Estimator, random: &mut Random) -> Self {
        let seconds = mix.mean_seconds * (0.25 + 0.75 * exponential(random, 1.0)).min(4.0);
        let esu = mix.mean_esu * (1.0 + mix.esu_spread * (2.0 * random.unit() - 1.0));
        let chance = 2.0 * random.unit() - 1.0;
        let estimate = match estimator {
            Estimator::Model { bias, noise } => Esu::clamped(esu * bias * (1.0 + noise * chance)),
            Estimator::OneEsu => Esu::ONE,
        };
        Self { estimate: Occupancy::of_each([ExecutorType::x86()], estimate), esu, millis: millis(seconds) }
    }
}
