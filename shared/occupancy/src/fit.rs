use crate::cross::Crosses;
use crate::dataset::{Dataset, Label, TypeLabels};
use crate::example::Example;
use crate::expand::{Layout, Resolved, expand};
use crate::hash::{mix, shuffle};
use crate::learner::{Learner, Settings};
use crate::measure::{Errors, GroupMeans};
use crate::model::{OccupancyModel, TypeModel};
use crate::number::single;
use crate::report::{Report, TestError, TypeReport};
use crate::vocabulary::{SlotTables, Vocabulary};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Parameters for fitting a model.
#[derive(Debug, Clone)]
pub struct FitOptions {
    /// Version number of the model.
    pub version: u64,
    /// The present time, in milliseconds since 1970.
    pub trained_at_ms: u64,
    /// Seed of the order in which builds are learned from.
    pub seed: u64,
    /// Number of times that each build is learned from.
    pub passes: u32,
    /// A value gets its own weight once this many builds have it; others share one weight per kind (OOV).
    pub least_seen: u32,
    /// An executor type gets a model once this many builds to learn from asked for it.
    pub least_builds: usize,
    /// Number of executor types learned concurrently, each on its own thread.
    pub threads: usize,
}

impl FitOptions {
    /// Default options for this version, with the training time in milliseconds since 1970.
    #[must_use]
    pub const fn new(version: u64, trained_at_ms: u64) -> Self {
        Self { version, trained_at_ms, seed: version, passes: 3, least_seen: 5, least_builds: 50, threads: 2 }
    }
}

/// Largest and smallest number of buckets for the crosses' values, as powers of two.
const MOST_BITS: u32 = 19;
const FEWEST_BITS: u32 = 10;

/// Fits one model per executor type to the builds to learn from, and tests each on the builds held out.
#[must_use]
pub fn fit(data: &Dataset, crosses: &Crosses, options: &FitOptions) -> OccupancyModel {
    let vocabulary = Vocabulary::of(data.values(), options.least_seen);
    let slots = SlotTables::new(data.values(), &vocabulary);
    let mut types: Vec<&TypeLabels> = data.types().iter().collect();
    types.retain(|labels| labels.train.len() >= options.least_builds.max(1));
    // The largest first, so that no thread ends up alone with it.
    types.sort_by(|one, other| {
        (other.train.len(), &one.executor_type).cmp(&(one.train.len(), &other.executor_type))
    });
    let fitter = Fitter { data, slots: &slots, vocabulary: &vocabulary, options };
    let mut parts: Vec<(TypeReport, TypeModel)> =
        on_threads(&types, options.threads, |labels| fitter.fit(labels, crosses));
    parts.sort_by(|(one, _), (other, _)| one.executor_type.cmp(&other.executor_type));
    let (reports, types) = parts.into_iter().unzip();
    let report = Report {
        version: options.version,
        trained_at_ms: options.trained_at_ms,
        builds: learned_from(data),
        words: vocabulary.hashes().len() as u64,
        types: reports,
    };
    OccupancyModel { report, vocabulary, types }
}

/// Number of builds to learn from.
fn learned_from(data: &Dataset) -> u64 {
    let mut rows: Vec<u32> =
        data.types().iter().flat_map(|labels| &labels.train).map(|label| label.row).collect();
    rows.sort_unstable();
    rows.dedup();
    rows.len() as u64
}

/// Applies `work` to each item on this many threads. The results are in no particular order.
fn on_threads<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut results = Vec::new();
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            results.push(work(item));
        }
        results
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(items.len())).map(|_| scope.spawn(run)).collect();
        let mut results = run();
        for other in others {
            results.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    })
}

struct Fitter<'a> {
    data: &'a Dataset,
    slots: &'a SlotTables,
    vocabulary: &'a Vocabulary,
    options: &'a FitOptions,
}

impl Fitter<'_> {
    fn fit(&self, labels: &TypeLabels, crosses: &Crosses) -> (TypeReport, TypeModel) {
        let crosses = crosses.of(&labels.executor_type);
        let resolved: Vec<_> = crosses.iter().map(|cross| Resolved::new(cross, self.vocabulary)).collect();
        // Four buckets per build are enough for rare types; frequent types get the maximum number.
        let bits = (labels.train.len() * 4).ilog2().clamp(FEWEST_BITS, MOST_BITS);
        let layout =
            Layout { first: self.vocabulary.end(), bits, usual: usual_targets(self.data, &labels.train) };
        let model = self.learn(&labels.train, resolved, layout);
        let test = self.test(labels, &model);
        let report = TypeReport {
            executor_type: labels.executor_type.clone(),
            builds: labels.train.len() as u64,
            buckets: 1 << bits,
            crosses: crosses.to_vec(),
            test,
        };
        (report, model)
    }

    fn learn(&self, train: &[Label], crosses: Vec<Resolved>, layout: Layout) -> TypeModel {
        let sum: f64 = train.iter().map(|label| f64::from(label.esu)).sum();
        // A type that was never used accepts any scale, but the scale must not be 0.
        let scale = single((sum / train.len() as f64).max(1e-6));
        let most = train.iter().map(|label| label.esu).fold(0.0, f32::max);
        let mut learner = Learner::new(layout.end(), SETTINGS);
        let mut order = train.to_vec();
        let (mut example, mut terms) = (Example::default(), Vec::new());
        for pass in 0..self.options.passes.max(1) {
            shuffle(&mut order, mix(self.options.seed).wrapping_add(u64::from(pass)));
            for label in &order {
                example.read(self.data.row(label.row), self.slots);
                expand(&example, &crosses, layout, &mut terms);
                learner.learn(&terms, label.esu / scale, 0.0);
            }
        }
        TypeModel { crosses, layout, weights: learner.weights(), scale, ceiling: (most * 2.0).min(f32::MAX) }
    }

    fn test(&self, labels: &TypeLabels, model: &TypeModel) -> Option<TestError> {
        let mut example = Example::default();
        let mut terms = Vec::new();
        let mut means = GroupMeans::default();
        for label in &labels.train {
            means.add(Example::read_group(self.data.row(label.row), self.slots), f64::from(label.esu));
        }
        let mut errors = Errors::default();
        for label in &labels.test {
            example.read(self.data.row(label.row), self.slots);
            expand(&example, &model.crosses, model.layout, &mut terms);
            errors.add(f64::from(label.esu), model.predict(&terms), example.group, &means);
        }
        errors.mean()
    }
}

/// Mean number of targets of these builds, at least 1.
pub(crate) fn usual_targets(data: &Dataset, labels: &[Label]) -> f32 {
    let counts = labels.iter().map(|label| u64::from(Example::read_target_count(data.row(label.row))));
    (counts.sum::<u64>() as f32 / labels.len().max(1) as f32).max(1.0)
}

/// Determined by trial on generated builds (`examples/fit.rs`).
pub(crate) const SETTINGS: Settings =
    Settings { noise: 0.1, growth: 1.0, caution: 2.0, outlier: 2.0, variance: 0.5 };
