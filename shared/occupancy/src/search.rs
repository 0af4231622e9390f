mod sample;
mod trials;

use crate::cross::{Cross, Crosses, Feature, MAX_FEATURES};
use crate::dataset::Dataset;
use crate::vocabulary::{SlotTables, Vocabulary};
use sample::Sample;
use std::collections::BTreeSet;
use trials::{HeldOut, Trials};

/// Most builds a search looks at, whatever the size of the dataset.
pub const SAMPLE: usize = 50_000;

/// Builds that must have a value for the search to tell it apart.
const LEAST_SEEN: u32 = 5;
/// An executor type with fewer builds to learn from gets no crosses.
const LEAST_BUILDS: usize = 400;
/// Most crosses per executor type.
const MOST_CROSSES: usize = 6;
/// Most crosses tried, over all executor types.
const MOST_TRIALS: usize = 9_000;
/// How many crosses of each size are grown further.
const BEAM: usize = 3;
/// How many of those with a value for each package or target are grown besides: they need more builds to show their
/// worth, and would be crowded out by those that need few.
const BESIDES: usize = 2;
/// Crosses of up to so many features are grown further even if they promise nothing yet.
const GROWN_ANYWAY: usize = 3;
/// A cross must lower the error on held-out builds by this part to be kept.
const GAIN: f64 = 0.002;
/// Each further feature must lower it by this part: one too many splits the builds to no purpose.
const STEP: f64 = 0.004;
/// A cross is dropped in the end if the error without it is higher by no more than this part.
const LOSS: f64 = 0.001;
/// After so many crosses in a row that promised much and gave little, an executor type's search ends.
const MOST_FAILURES: usize = 5;

/// Looks for the crosses that make the model better, for each executor type on its own (section 4.3, where a black-box
/// optimiser does it): pairs of basic features are tried on what the model does not explain yet, the best are grown by
/// a feature at a time, and the best of all is kept if the model learned anew with it is better on builds held out;
/// until nothing helps any more.
///
/// It looks at no more than [`SAMPLE`] builds that are to learn from, drawn by `seed`, and tries a bounded number of
/// crosses, which takes a minute or two. It asks `keep_going` some times a second, and once that is false gives what
/// it found so far.
#[must_use]
pub fn search(data: &Dataset, seed: u64, keep_going: &mut dyn FnMut() -> bool) -> Crosses {
    let vocabulary = Vocabulary::of(data.values(), LEAST_SEEN);
    let slots = SlotTables::new(data.values(), &vocabulary);
    let mut types: Vec<_> = data.types().iter().filter(|labels| labels.train.len() >= LEAST_BUILDS).collect();
    // From the rarest, so that what one leaves of its share goes to those with more.
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

/// Adds the first of the promising crosses that keeps its promise. Gives the errors with it; none if there is none.
fn first_better(
    trials: &mut Trials<'_>,
    chosen: &mut Vec<Cross>,
    promising: Vec<Cross>,
    error: &HeldOut,
) -> Option<HeldOut> {
    for cross in promising {
        chosen.push(cross);
        match trials.learn(chosen) {
            Some(with) if with.better_than(error, GAIN) => return Some(with),
            Some(_) | None => chosen.pop(),
        };
    }
    None
}

/// The features to make crosses of: all but the flags, and the flags that tell most.
fn features(trials: &Trials<'_>, data: &Dataset) -> Vec<Feature> {
    let flags = trials.telling_flags(data).into_iter().map(Feature::Flag);
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

/// The most promising crosses, the best first; none once it is time to end.
fn grow(trials: &mut Trials<'_>, features: &[Feature], error: f64, chosen: &[Cross]) -> Option<Vec<Cross>> {
    let least = error * GAIN;
    let mut beam: Vec<Cross> = features.iter().filter_map(|feature| Cross::new([feature.clone()])).collect();
    let (mut best, mut others) = (None, Vec::new());
    let mut limit = error - least;
    for size in 2..=MAX_FEATURES {
        let grown: BTreeSet<Cross> =
            beam.iter().flat_map(|cross| features.iter().filter_map(|feature| cross.with(feature))).collect();
        let mut scored = trials.score(grown.into_iter().filter(|cross| !chosen.contains(cross)))?;
        scored.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        beam = widened(&scored);
        scored.truncate(BEAM);
        others.extend(scored.iter().filter(|(with, _)| *with < error - least).cloned());
        match scored.into_iter().next().filter(|(with, _)| *with < limit) {
            Some((with, cross)) => {
                limit = with - error * STEP;
                best = Some(cross);
            }
            // Some crosses show their worth only when they are whole, so that the small are grown in any case.
            None if size > GROWN_ANYWAY => break,
            None => {}
        }
    }
    others.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let others = others.into_iter().map(|(_, cross)| cross).filter(|cross| best.as_ref() != Some(cross));
    Some(best.iter().cloned().chain(others).take(MOST_FAILURES).collect())
}

/// Those to grow further of the crosses scored, which come best first.
fn widened(scored: &[(f64, Cross)]) -> Vec<Cross> {
    let each = |cross: &Cross| {
        [Feature::Package, Feature::Target].iter().any(|feature| cross.features().contains(feature))
    };
    let (best, others) = scored.split_at(scored.len().min(BEAM));
    let besides = others.iter().filter(|(_, cross)| each(cross)).take(BESIDES);
    best.iter().chain(besides).map(|(_, cross)| cross.clone()).collect()
}

/// Drops the crosses that those chosen after them have made superfluous.
fn prune(trials: &mut Trials<'_>, mut chosen: Vec<Cross>, mut error: f64) -> Vec<Cross> {
    let mut place = 0;
    while chosen.len() > 1 && place < chosen.len() {
        let cross = chosen.remove(place);
        match trials.learn(&chosen) {
            Some(without) if without.mean() < error * (1.0 + LOSS) => error = without.mean().min(error),
            Some(_) | None => {
                chosen.insert(place, cross);
                place += 1;
            }
        }
    }
    chosen
}

/// Takes out of each cross the features that the growing picked up on its way and that the whole does not need.
fn trim(trials: &mut Trials<'_>, mut chosen: Vec<Cross>) -> Vec<Cross> {
    let Some(mut error) = trials.learn(&chosen).map(|errors| errors.mean()) else { return chosen };
    for place in 0..chosen.len() {
        let features = chosen.get(place).map(|cross| cross.features().to_vec()).unwrap_or_default();
        for feature in &features {
            let Some(shorter) = chosen.get(place).and_then(|cross| cross.without(feature)) else { continue };
            let mut others = chosen.clone();
            others.splice(place..=place, [shorter]);
            match trials.learn(&others) {
                Some(without) if without.mean() < error * (1.0 + LOSS) => {
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
