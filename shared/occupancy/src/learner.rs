use crate::expand::Term;
use crate::number::to_index;

/// Learns the weights of a linear model from one build at a time. Each weight has a variance, which says how uncertain
/// it still is: a correction is distributed by variance, so that new values are learned fast and well-known ones remain
/// stable (a Kalman filter that neglects covariances, also known as AROW). Errors are limited relative to the usual
/// error, so that a few outliers do not distort the weights (Huber).
#[derive(Debug)]
pub(crate) struct Learner {
    weights: Vec<Weight>,
    settings: Settings,
    /// Recent mean of the square errors, relative to the variance expected by the settings.
    noisiness: f32,
}

/// Parameters of the learner, in multiples of the executor type's mean ESU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Settings {
    /// Unexplainable variance of a build whose prediction is 0.
    pub(crate) noise: f32,
    /// Growth of that variance with the square of the prediction.
    pub(crate) growth: f32,
    /// Factor on the variance assumed for builds: neighbouring weights share one error, which the variances neglect.
    pub(crate) caution: f32,
    /// Errors beyond this number of standard deviations are limited to it.
    pub(crate) outlier: f32,
    /// Initial variance of a weight.
    pub(crate) variance: f32,
}

/// Bounds of the noisiness, and the fraction of it that each build replaces.
const LEAST_NOISY: f32 = 0.01;
const MOST_NOISY: f32 = 4.0;
const FORGETTING: f32 = 0.001;

#[derive(Debug, Clone, Copy)]
struct Weight {
    value: f32,
    variance: f32,
}

impl Learner {
    pub(crate) fn new(slots: u32, settings: Settings) -> Self {
        let weight = Weight { value: 0.0, variance: settings.variance };
        Self { weights: vec![weight; to_index(slots)], settings, noisiness: 1.0 }
    }

    /// The prediction for these terms.
    #[inline]
    pub(crate) fn predict(&self, terms: &[Term]) -> f32 {
        terms
            .iter()
            .map(|term| self.weights.get(to_index(term.slot)).map_or(0.0, |it| it.value * term.factor))
            .sum()
    }

    /// Learns that `actual` was the right value, where another model already predicts `before` of it.
    #[inline]
    pub(crate) fn learn(&mut self, terms: &[Term], actual: f32, before: f32) {
        let (mut predicted, mut variance) = (before, 0.0_f32);
        for term in terms {
            if let Some(weight) = self.weights.get(to_index(term.slot)) {
                predicted += weight.value * term.factor;
                variance += weight.variance * term.factor * term.factor;
            }
        }
        let error = actual - predicted;
        let level = predicted.max(0.0);
        let usual = self.settings.noise + self.settings.growth * level * level;
        let noise = usual * self.noisiness * self.settings.caution;
        self.noisiness += ((error * error / usual).min(MOST_NOISY) - self.noisiness) * FORGETTING;
        self.noisiness = self.noisiness.max(LEAST_NOISY);
        let limit = self.settings.outlier * noise.sqrt();
        let noise = noise * (error.abs() / limit).max(1.0);
        let gain = 1.0 / (variance + noise);
        let step = gain * error;
        for term in terms {
            if let Some(weight) = self.weights.get_mut(to_index(term.slot)) {
                let share = weight.variance * term.factor;
                weight.value += step * share;
                weight.variance -= gain * share * share;
            }
        }
    }

    /// The learned weights as they are published: negligible ones as 0, the others rounded to about three digits.
    pub(crate) fn weights(&self) -> Vec<f32> {
        self.weights.iter().map(|weight| rounded(weight.value)).collect()
    }
}

/// Weights below this change no prediction by more than a thousandth of the mean.
const NEGLIGIBLE: f32 = 1e-4;

/// The nearest number whose lower 16 bits are 0; 0 if that is not finite or negligible.
fn rounded(weight: f32) -> f32 {
    let near = f32::from_bits(weight.to_bits().wrapping_add(0x8000) & 0xffff_0000);
    if near.is_finite() && near.abs() >= NEGLIGIBLE { near } else { 0.0 }
}
