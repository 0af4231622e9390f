mod sample;
mod trials;

use crate::cross::{Cross, Crosses, Feature, MAX_FEATURES};
use crate::dataset::Dataset;
use crate::vocabulary::{SlotTables, Vocabulary};
use invariant::Present as _;
use sample::Sample;
use std::collections::BTreeSet;
use trials::{HeldOut, Trials};

/// Maximum number of builds that a search uses, whatever the size of the dataset.
pub const SAMPLE: usize = 50_000;

/// Minimum number of builds that must have a value for the search to distinguish it.
const LEAST_SEEN: u32 = 5;
/// Minimum number of builds to learn from; an executor type with fewer gets no crosses.
const LEAST_BUILDS: usize = 400;
/// Maximum number of crosses per executor type.
const MOST_CROSSES: usize = 6;
/// Maximum number of crosses tried over all executor types.
const MOST_TRIALS: usize = 9_000;
/// Number of crosses of each size that are extended further.
const BEAM: usize = 3;
/// Number of further crosses with a value for each package or target that are extended too: they need more builds to
/// show their benefit, and would be displaced by those that need few.
const BEAM_OF_EACH: usize = 2;
/// Crosses of up to this number of features are extended even if they show no benefit yet.
const GROWN_ANYWAY: usize = 3;
/// Fraction by which a cross must lower the error on held-out builds to be kept.
const GAIN_MIN: f64 = 0.002;
/// Fraction by which each additional feature must lower the error: a needless feature splits
/// the builds without benefit.
const FEATURE_GAIN_MIN: f64 = 0.004;
/// A cross is finally dropped if the error without it is higher by at most this fraction.
const LOSS_MAX: f64 = 0.001;
/// The search for an executor type ends after this number of consecutive crosses that promised much and gained little.
const MOST_FAILURES: usize = 5;

/// Searches for the crosses that improve the model, for each executor type separately (section 4.3 of the paper, where
/// a black-box optimiser does it): pairs of basic features are tried on the error that the model leaves, the best are
/// extended by one feature at a time, and the best of all is kept if the model learned again with it is better on the
/// builds held out. This repeats until nothing improves the model.
///
/// It uses at most [`SAMPLE`] of the builds to learn from, drawn by `seed`, and tries a bounded number of
/// crosses, which takes a minute or two. It calls `keep_going` several times per second, and returns what it has
/// found once that is false.
#[must_use]
pub fn search(data: &Dataset, seed: u64, keep_going: &mut dyn FnMut() -> bool) -> Crosses {
    let vocabulary = Vocabulary::of(data.values(), LEAST_SEEN);
    let slots = SlotTables::new(data.values(), &vocabulary);
    let mut types: Vec<_> = data.types().iter().filter(|labels| labels.train.len() >= LEAST_BUILDS).collect();
    // Starts with the rarest type, so that the remainder of its share goes to types with more builds.
    types.sort_by_key(|labels| (labels.train.len(), labels.executor_type.as_str()));
    let mut crosses = Crosses::default();
    let (mut builds, mut tries) = (SAMPLE, MOST_TRIALS);
    for (done, labels) in types.iter().enumerate() {
        let left = types.len() - done;
        let sample = Sample::draw(data, &slots, labels, builds / left, seed);
        builds -= sample.len();
        let mut trials = Trials::new(sample, &vocabulary, tries / left, keep_going);
        let found = for_type(&mut trials, data);
        tries -= trials.tried();
        if !found.is_empty() {
            crosses.by_type.insert(labels.executor_type.clone(), found);
        }
    }
    crosses
}

fn for_type(trials: &mut Trials<'_>, data: &Dataset) -> Vec<Cross> {
    let mut chosen: Vec<Cross> = Vec::new();
    let Some(mut error) = trials.learn(&chosen) else { return chosen };
    let features = features(trials, data);
    while chosen.len() < MOST_CROSSES {
        let Some(promising) = grow(trials, &features, error.mean(), &chosen) else { break };
        let Some(better) = first_better(trials, &mut chosen, promising, &error) else { break };
        error = better;
    }
    let chosen = prune(trials, chosen, error.mean());
    trim(trials, chosen)
}

/// Adds the first of the promising crosses that improves the model. Returns the errors with it; `None`
/// if there is none.
fn first_better(
    trials: &mut Trials<'_>,
    chosen: &mut Vec<Cross>,
    promising: Vec<Cross>,
    error: &HeldOut,
) -> Option<HeldOut> {
    for cross in promising {
        chosen.push(cross);
        match trials.learn(chosen) {
            Some(with) if with.better_than(error, GAIN_MIN) => return Some(with),
            Some(_) | None => chosen.pop(),
        };
    }
    None
}

/// The features to combine: all except flags, and the most informative flags.
fn features(trials: &Trials<'_>, data: &Dataset) -> Vec<Feature> {
    let flags = trials.informative_flags(data).into_iter().map(Feature::Flag);
    [
        Feature::Command,
        Feature::Group,
        Feature::Priority,
        Feature::Package,
        Feature::Target,
        Feature::TargetCount,
        Feature::PackageCount,
    ]
    .into_iter()
    .chain(flags)
    .collect()
}

/// The most promising crosses, the best first; `None` once it is time to end.
fn grow(trials: &mut Trials<'_>, features: &[Feature], error: f64, chosen: &[Cross]) -> Option<Vec<Cross>> {
    let least = error * GAIN_MIN;
    let mut beam: Vec<Cross> = features.iter().filter_map(|feature| Cross::new([feature.clone()])).collect();
    let (mut best, mut others) = (None, Vec::new());
    let mut limit = error - least;
    for size in 2..=MAX_FEATURES {
        let grown: BTreeSet<Cross> =
            beam.iter().flat_map(|cross| features.iter().filter_map(|feature| cross.with(feature))).collect();
        let mut scored = trials.score(grown.into_iter().filter(|cross| !chosen.contains(cross)))?;
        scored.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        beam = next_beam(&scored);
        scored.truncate(BEAM);
        others.extend(scored.iter().filter(|(with, _)| *with < error - least).cloned());
        match scored.into_iter().next().filter(|(with, _)| *with < limit) {
            Some((with, cross)) => {
                limit = with - error * FEATURE_GAIN_MIN;
                best = Some(cross);
            }
            // Some crosses show their benefit only when complete, so small ones are extended in any case.
            None if size > GROWN_ANYWAY => break,
            None => {}
        }
    }
    others.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let others = others.into_iter().map(|(_, cross)| cross).filter(|cross| best.as_ref() != Some(cross));
    Some(best.iter().cloned().chain(others).take(MOST_FAILURES).collect())
}

/// The crosses to extend further, out of the scored ones, which are sorted from the best.
fn next_beam(scored: &[(f64, Cross)]) -> Vec<Cross> {
    let has_package_or_target = |cross: &Cross| {
        [Feature::Package, Feature::Target].iter().any(|feature| cross.features().contains(feature))
    };
    let (best, others) = scored.split_at(scored.len().min(BEAM));
    let of_each = others.iter().filter(|(_, cross)| has_package_or_target(cross)).take(BEAM_OF_EACH);
    best.iter().chain(of_each).map(|(_, cross)| cross.clone()).collect()
}

/// Drops the crosses that later ones have made superfluous.
fn prune(trials: &mut Trials<'_>, mut chosen: Vec<Cross>, mut error: f64) -> Vec<Cross> {
    let mut place = 0;
    while chosen.len() > 1 && place < chosen.len() {
        let cross = chosen.remove(place);
        match trials.learn(&chosen) {
            Some(without) if without.mean() < error * (1.0 + LOSS_MAX) => error = without.mean().min(error),
            Some(_) | None => {
                chosen.insert(place, cross);
                place += 1;
            }
        }
    }
    chosen
}

/// Removes the features from each cross that the extension added and that the complete cross does not need.
fn trim(trials: &mut Trials<'_>, mut chosen: Vec<Cross>) -> Vec<Cross> {
    let Some(mut error) = trials.learn(&chosen).map(|errors| errors.mean()) else { return chosen };
    for place in 0..chosen.len() {
        let features = chosen
            .get(place)
            .map(|cross| cross.features().to_vec())
            .present("the features of a chosen cross");
        for feature in &features {
            let Some(shorter) = chosen.get(place).and_then(|cross| cross.without(feature)) else { continue };
            let mut others = chosen.clone();
            others.splice(place..=place, [shorter]);
            match trials.learn(&others) {
                Some(without) if without.mean() < error * (1.0 + LOSS_MAX) => {
                    error = without.mean().min(error);
                    chosen = others;
                }
                Some(_) => {}
                None => return chosen,
            }
        }
    }
    chosen
}
