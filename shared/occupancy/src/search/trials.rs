use super::sample::Sample;
use crate::cross::Cross;
use crate::dataset::Dataset;
use crate::expand::{Layout, Resolved, expand};
use crate::facts::Kind;
use crate::fit::SETTINGS;
use crate::learner::Learner;
use crate::slots::ABSENT;
use crate::vocabulary::Vocabulary;
use invariant::{Present as _, impossible};
use std::collections::{BTreeMap, HashMap};

/// Number of crosses tried in one pass over the builds, which is also the interval between calls of `keep_going`.
const CROSSES_PER_PASS: usize = 8;
/// Number of times that a model or a cross is learned from the sample.
const PASSES: usize = 2;
/// Gains of fewer standard deviations may be due to chance.
const DEVIATIONS: f64 = 2.5;
/// Maximum number of flags that crosses are made of.
const FLAGS: usize = 12;
/// Number of builds with a flag's value at which the value counts half.
const FEW_BUILDS: f64 = 20.0;

/// Tries crosses on one executor type's sample.
pub(super) struct Trials<'a> {
    sample: Sample<'a>,
    vocabulary: &'a Vocabulary,
    /// Prediction of the last learned model for each build.
    predicted: Vec<f32>,
    bits: u32,
    most: usize,
    tried: usize,
    keep_going: &'a mut dyn FnMut() -> bool,
}

impl<'a> Trials<'a> {
    pub(super) fn new(
        sample: Sample<'a>,
        vocabulary: &'a Vocabulary,
        most: usize,
        keep_going: &'a mut dyn FnMut() -> bool,
    ) -> Self {
        let bits = (sample.len().max(1) * 4).ilog2().clamp(10, 17);
        let predicted = vec![0.0; sample.len()];
        Self { sample, vocabulary, predicted, bits, most, tried: 0, keep_going }
    }

    /// Number of crosses tried.
    pub(super) const fn tried(&self) -> usize {
        self.tried
    }

    /// Learns a model with these crosses, on whose predictions later trials are to improve. Returns its absolute errors
    /// on held-out builds; `None` once it is time to end.
    pub(super) fn learn(&mut self, crosses: &[Cross]) -> Option<HeldOut> {
        if !(self.keep_going)() || self.sample.len() == 0 {
            return None;
        }
        let crosses: Vec<_> = crosses.iter().map(|cross| Resolved::new(cross, self.vocabulary)).collect();
        let layout = Layout { first: self.vocabulary.end(), bits: self.bits, usual: self.sample.usual };
        let mut learner = Learner::new(layout.end(), SETTINGS);
        let mut terms = Vec::new();
        for _ in 0..PASSES {
            self.sample.for_each(|_, build, esu, held_out| {
                if !held_out {
                    expand(build, &crosses, layout, &mut terms);
                    learner.learn(&terms, esu, 0.0);
                }
            });
        }
        let mut errors = Vec::new();
        let mut predicted = std::mem::take(&mut self.predicted);
        self.sample.for_each(|place, build, esu, held_out| {
            expand(build, &crosses, layout, &mut terms);
            let prediction = learner.predict(&terms);
            if let Some(kept) = predicted.get_mut(place) {
                *kept = prediction;
            } else {
                impossible!("build {place} of the sample has no prediction");
            }
            if held_out {
                errors.push((esu - prediction.max(0.0)).abs());
            }
        });
        self.predicted = predicted;
        Some(HeldOut { errors })
    }

    /// The mean absolute error on held-out builds with each cross added to the last learned model, learning only the
    /// weights of the cross. `None` once it is time to end.
    pub(super) fn score(&mut self, crosses: impl Iterator<Item = Cross>) -> Option<Vec<(f64, Cross)>> {
        let crosses: Vec<Cross> = crosses.collect();
        let mut scored = Vec::with_capacity(crosses.len());
        for some in crosses.chunks(CROSSES_PER_PASS) {
            if self.tried + some.len() > self.most || !(self.keep_going)() {
                return None;
            }
            self.tried += some.len();
            scored.extend(self.errors(some).into_iter().zip(some.iter().cloned()));
        }
        Some(scored)
    }

    fn errors(&self, crosses: &[Cross]) -> Vec<f64> {
        let layout = Layout { first: 0, bits: self.bits, usual: self.sample.usual };
        let mut tried: Vec<_> = crosses
            .iter()
            .map(|cross| (Resolved::new(cross, self.vocabulary), Learner::new(layout.end(), SETTINGS), 0.0))
            .collect();
        let mut terms = Vec::new();
        for pass in 1..=PASSES {
            self.sample.for_each(|place, build, esu, held_out| {
                let before =
                    self.predicted.get(place).copied().present("the prediction for a build of the sample");
                for (cross, learner, error) in &mut tried {
                    if held_out && pass < PASSES {
                        continue;
                    }
                    terms.clear();
                    cross.expand(build, layout, &mut terms);
                    if held_out {
                        *error += f64::from((esu - (before + learner.predict(&terms)).max(0.0)).abs());
                    } else {
                        learner.learn(&terms, esu, before);
                    }
                }
            });
        }
        tried.into_iter().map(|(_, _, error)| error / self.held_out()).collect()
    }

    fn held_out(&self) -> f64 {
        (self.sample.len() - self.sample.learned()).max(1) as f64
    }

    /// Names of the flags whose values explain most of the error that the last learned model leaves. Flags multiply the
    /// cost of a build, so the error is the logarithm of actual by predicted ESU.
    pub(super) fn informative_flags(&self, data: &Dataset) -> Vec<String> {
        let mut by_value: BTreeMap<(u32, u64), (f64, f64)> = BTreeMap::new();
        let (mut builds, mut sum) = (0.0, 0.0);
        self.sample.for_each(|place, build, esu, held_out| {
            if held_out {
                return;
            }
            let predicted =
                self.predicted.get(place).copied().present("the prediction for a build of the sample");
            let predicted = predicted.max(0.0);
            let ratio = f64::from(((1.0 + esu) / (1.0 + predicted)).ln());
            builds += 1.0;
            sum += ratio;
            let mut last = ABSENT;
            for &(name, _) in &build.flags {
                if name != last {
                    let (builds, sum) = by_value.entry((name, build.flag(name))).or_default();
                    *builds += 1.0;
                    *sum += ratio;
                    last = name;
                }
            }
        });
        let mean: f64 = sum / f64::max(builds, 1.0);
        let mut by_name: BTreeMap<u32, FlagEffect> = BTreeMap::new();
        for ((name, _), (builds, sum)) in by_value {
            by_name.entry(name).or_default().add(builds, sum - builds * mean);
        }
        let names = data.flag_names();
        let names = names.map(|(hash, name)| (self.vocabulary.slot(Kind::FlagName, hash), name));
        let names: HashMap<u32, &str> = names.filter(|(slot, _)| *slot != Kind::FlagName.unknown()).collect();
        let mut informative: Vec<(f64, &str)> = by_name
            .into_iter()
            .filter_map(|(name, effect)| Some((effect.value(builds), *names.get(&name)?)))
            .collect();
        informative
            .sort_by(|(one, name), (other, other_name)| other.total_cmp(one).then(name.cmp(other_name)));
        informative.into_iter().take(FLAGS).map(|(_, name)| name.to_owned()).collect()
    }
}

/// Absolute errors on the builds held out, as fractions of the mean ESU.
pub(super) struct HeldOut {
    errors: Vec<f32>,
}

impl HeldOut {
    pub(super) fn mean(&self) -> f64 {
        self.errors.iter().copied().map(f64::from).sum::<f64>() / self.errors.len().max(1) as f64
    }

    /// Whether these errors are lower than the `other` errors on the same builds by this fraction, and by more than
    /// chance explains, given that the best of hundreds was chosen.
    pub(super) fn better_than(&self, other: &Self, part: f64) -> bool {
        let count = self.errors.len().max(2) as f64;
        let gains = self.errors.iter().zip(&other.errors).map(|(one, other)| f64::from(other - one));
        let (sum, squares) =
            gains.fold((0.0, 0.0), |(sum, squares), gain| (sum + gain, squares + gain * gain));
        let mean = sum / count;
        let deviation = ((squares / count - mean * mean).max(0.0) / count).sqrt();
        mean > (part * other.mean()).max(DEVIATIONS * deviation)
    }
}

/// How much of the error the values of one flag explain.
#[derive(Default)]
struct FlagEffect {
    explained: f64,
    builds: f64,
    sum: f64,
}

impl FlagEffect {
    fn add(&mut self, builds: f64, sum: f64) {
        self.explained += sum * sum / (builds + FEW_BUILDS);
        self.builds += builds;
        self.sum += sum;
    }

    /// Sum of squares that its values and its absence explain, over this number of builds.
    fn value(&self, builds: f64) -> f64 {
        self.explained + self.sum * self.sum / (builds - self.builds + FEW_BUILDS)
    }
}
