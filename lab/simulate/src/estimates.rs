//! Accuracy of run time estimates, on random and on recorded streams of work.
//!
//! A stream goes through `policy::estimate` as in the services: each item is estimated when it arrives, from
//! the items that have ended by then. Every item starts at once here; in a farm with a queue, an estimator
//! knows a little less.

mod stream;
mod trace;

use std::{collections::BTreeMap, time::Duration};

use model::EstimatorKind;
use policy::estimate::{Estimator, Keys, Quality, Source, Tally};
use replay::Events;
use serde::{Deserialize, Serialize};

pub use stream::{EstimateScenario, Habits};
pub use trace::{EstimateTrace, read_estimate_items};

use crate::statistics::rounded;

/// Maximum number of keys that an estimator remembers: more than any stream has.
const MOST_KEYS: usize = 1_000_000;
/// One item of work in a stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EstimateItem {
    /// Arrival in milliseconds from the beginning.
    pub arrival_ms: u64,
    /// Run time in milliseconds.
    pub duration_ms: u64,
    /// Time limit in milliseconds.
    pub limit_ms: u64,
    /// Keys by which similar work is found.
    pub keys: Keys,
    /// True median run time of work with the same keys, where the stream was generated and the median is known.
    pub median_ms: Option<u64>,
    /// Estimate that was made when the item was recorded.
    pub recorded_ms: Option<u64>,
}

/// The source of the estimates under evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EstimatedBy {
    /// The rule of the thesis.
    Thesis,
    /// The rule with the smallest recent error.
    Adaptive,
    /// The true median of the work with the same keys, which no estimator knows: close to the best possible estimate.
    Median,
    /// Estimates made when the stream was recorded.
    Recorded,
    /// The rule of the thesis on the records of its author's farm, as published (section 3.4.2).
    Published,
}

/// Accuracy of one estimator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EstimateFigures {
    /// Estimator that these figures are of.
    pub by: EstimatedBy,
    /// Number of estimates made.
    pub count: u64,
    /// Percentage of estimates whose error is less than 10 %.
    pub within_10_pct: f64,
    /// Percentage of estimates whose error is less than 20 %.
    pub within_20_pct: f64,
    /// Number of estimates that were too high.
    pub over: u64,
    /// Number of estimates that were too low.
    pub under: u64,
    /// Number of estimates of more than twice the true run time.
    pub doubled: u64,
    /// Number of estimates for each kind of history that they were based on.
    pub sources: BTreeMap<String, u64>,
}

impl EstimatedBy {
    /// Name of the estimator in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thesis => "thesis",
            Self::Adaptive => "adaptive",
            Self::Median => "true median",
            Self::Recorded => "recorded",
            Self::Published => "as published",
        }
    }
}

impl EstimateFigures {
    /// The figures of the thesis: 57 % and 82 %, and 136,158 estimates with an error.
    pub fn published() -> Self {
        let (under, over) = (74_898, 61_260);
        Self {
            by: EstimatedBy::Published,
            count: under + over,
            within_10_pct: 57.0,
            within_20_pct: 82.0,
            over,
            under,
            // The thesis says that "around 7 %" were more than twice the true run time.
            doubled: (under + over) * 7 / 100,
            sources: BTreeMap::new(),
        }
    }

    /// Combines these figures with those of another stream.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        let count = self.count + other.count;
        let share = |ours: f64, theirs: f64| {
            let sum = ours * self.count as f64 + theirs * other.count as f64;
            rounded(sum / count.max(1) as f64, 2)
        };
        self.within_10_pct = share(self.within_10_pct, other.within_10_pct);
        self.within_20_pct = share(self.within_20_pct, other.within_20_pct);
        self.count = count;
        self.over += other.over;
        self.under += other.under;
        self.doubled += other.doubled;
        for (source, count) in &other.sources {
            *self.sources.entry(source.clone()).or_default() += count;
        }
        self
    }
}

/// Runs `items`, in the order of their arrival, through both estimators, and through the other estimates that are
/// known for every item.
pub fn compare_estimates(items: &[EstimateItem]) -> Vec<EstimateFigures> {
    let fixed = |by, of: fn(&EstimateItem) -> Option<u64>| {
        let mut quality = Quality::default();
        let estimated = items.iter().filter_map(|item| of(item).map(|ms| (ms, item.duration_ms)));
        estimated.for_each(|(ms, took)| quality.observe(ms, took));
        (quality.all().count > 0).then(|| figures(by, quality.all(), BTreeMap::new()))
    };
    let median = fixed(EstimatedBy::Median, |item| item.median_ms);
    let recorded = fixed(EstimatedBy::Recorded, |item| item.recorded_ms);
    let learned = EstimatorKind::ALL.map(|kind| learn(items, kind));
    learned.into_iter().chain(median).chain(recorded).collect()
}

fn learn(items: &[EstimateItem], kind: EstimatorKind) -> EstimateFigures {
    let mut estimator = Estimator::new(kind, MOST_KEYS);
    let mut quality = Quality::default();
    let mut sources: BTreeMap<Source, u64> = BTreeMap::new();
    // Ends of running items.
    let mut running: Events<usize> = Events::default();
    for (at, item) in items.iter().enumerate() {
        while let Some((_, ended)) = running.pop_if(|end| end <= item.arrival_ms) {
            let Some(ended) = items.get(ended) else {
                unreachable!("a running item is not in the stream");
            };
            estimator.observe(&ended.keys, Duration::from_millis(ended.duration_ms));
        }
        let estimate = estimator.estimate(&item.keys, Duration::from_millis(item.limit_ms));
        quality.observe(estimate.ms, item.duration_ms);
        *sources.entry(estimate.source).or_default() += 1;
        running.push(item.arrival_ms.saturating_add(item.duration_ms), at);
    }
    let sources = sources.into_iter().map(|(source, count)| (source.to_string(), count)).collect();
    let by = match kind {
        EstimatorKind::Thesis => EstimatedBy::Thesis,
        EstimatorKind::Adaptive => EstimatedBy::Adaptive,
    };
    figures(by, quality.all(), sources)
}

fn figures(by: EstimatedBy, tally: &Tally, sources: BTreeMap<String, u64>) -> EstimateFigures {
    let percent = |share: Option<f64>| rounded(100.0 * share.unwrap_or_default(), 2);
    let doubled = tally.errors_above(1.0);
    EstimateFigures {
        by,
        count: tally.count,
        within_10_pct: percent(tally.share_within_10()),
        within_20_pct: percent(tally.share_within_20()),
        over: tally.over,
        under: tally.under,
        doubled,
        sources,
    }
}

#[cfg(test)]
mod tests;
