//! Estimates how long work will take, from the run times of similar work (section 3.4 of the thesis).
//!
//! Each piece of work has a few [`Keys`], from the coarsest (its environment) to the most precise (its submitter with
//! its labels). The last 20 durations of each key are kept. [`EstimatorKind::Thesis`] returns the median of the most
//! precise key with enough data; [`EstimatorKind::Adaptive`] evaluates several such rules, including the thesis's, and
//! uses the one that was best recently for work with these labels. [`Quality`] measures how good the estimates were.

mod adaptive;
mod keys;
mod past;
mod quality;
mod thesis;

use std::{fmt, time::Duration};

use adaptive::Scores;
pub use keys::Keys;
use model::EstimatorKind;
use past::Past;
pub use quality::{ERROR_BOUNDS, Quality, Tally};

use crate::recent::Recent;

/// Default maximum number of keys: at most some 20 MB.
const MOST_KEYS: usize = 100_000;

/// The data that an estimate is based on, from the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// Work with exactly the same command. The thesis's rule has no such key.
    Command,
    /// Work of the same submitter with the same labels: the thesis's author and exercise.
    Submitter,
    /// Work with the same labels: the thesis's exercise.
    Labels,
    /// Work in the same environment on the same hardware that took less than the limit.
    Environment,
    /// Without any data, the estimate is half of the limit.
    HalfOfLimit,
}

impl Source {
    /// All sources, from the best.
    pub const ALL: [Self; 5] =
        [Self::Command, Self::Submitter, Self::Labels, Self::Environment, Self::HalfOfLimit];

    /// Its name in messages, metrics and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Submitter => "submitter",
            Self::Labels => "labels",
            Self::Environment => "environment",
            Self::HalfOfLimit => "half_of_limit",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Estimated run time of a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// Estimated run time in milliseconds.
    pub ms: u64,
    /// The data that the estimate is based on.
    pub source: Source,
}

impl Estimate {
    /// The estimate as a duration.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.ms)
    }
}

/// The data stored per key.
#[derive(Debug, Clone, Default)]
struct Known {
    past: Past,
    /// Scores of the rules for work with these labels; absent for other keys.
    scores: Option<Box<Scores>>,
}

/// Learns how long work takes and estimates the run times of further work. It has no notion of time: an
/// observation counts until 20 newer ones of its key follow, or until its key is the least recently updated one
/// while there are too many keys.
#[derive(Debug, Clone)]
pub struct Estimator {
    kind: EstimatorKind,
    known: Recent<u64, Known>,
    /// Scores of the rules for all work.
    scores: Scores,
}

impl Default for Estimator {
    fn default() -> Self {
        Self::new(EstimatorKind::default(), MOST_KEYS)
    }
}

impl Estimator {
    /// Creates an estimator without data that keeps durations of at most `most_keys` keys; each piece of work has three
    /// or four. The least recently updated key is evicted first.
    pub fn new(kind: EstimatorKind, most_keys: usize) -> Self {
        Self { kind, known: Recent::new(most_keys), scores: Scores::default() }
    }

    /// The rule that it uses.
    pub fn kind(&self) -> EstimatorKind {
        self.kind
    }

    /// Number of keys with data.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether it has no data.
    pub fn is_empty(&self) -> bool {
        self.known.len() == 0
    }

    /// Learns the run time of work with these keys. Pass only work that ended on its own: cancelled work, or work lost
    /// with its worker, must not be counted. Durations are limited to 49 days.
    pub fn observe(&mut self, keys: &Keys, took: Duration) {
        let ms = u32::try_from(took.as_millis()).unwrap_or(u32::MAX);
        let judged = match self.kind {
            EstimatorKind::Thesis => None,
            EstimatorKind::Adaptive => self.pasts(keys).judge(ms),
        };
        if let Some(judged) = &judged {
            self.scores.add(judged, adaptive::MEMORY_OF_ALL);
        }
        for key in keys.all() {
            let known = self.known.of(key);
            known.past.push(ms);
            if let Some(judged) = judged.as_ref().filter(|_| key == keys.labels) {
                known.scores.get_or_insert_default().add(judged, adaptive::MEMORY_OF_LABELS);
            }
        }
    }

    /// Estimates the run time of work with these keys whose maximum run time is `limit`. Without data the estimate is
    /// half of the limit.
    pub fn estimate(&self, keys: &Keys, limit: Duration) -> Estimate {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let pasts = self.pasts(keys);
        let answer = match self.kind {
            EstimatorKind::Thesis => thesis::answer(&pasts, limit_ms),
            EstimatorKind::Adaptive => {
                let known = self.known.get(keys.labels).and_then(|known| known.scores.as_deref());
                adaptive::answer(&pasts, limit_ms, self.scores.best(known))
            }
        };
        answer.unwrap_or(Estimate { ms: limit_ms / 2, source: Source::HalfOfLimit })
    }

    /// The past durations of each key.
    fn pasts(&self, keys: &Keys) -> Pasts<'_> {
        let past_of = |key| self.known.get(key).map_or(Past::NONE, |known| &known.past);
        Pasts {
            command: keys.command.map_or(Past::NONE, past_of),
            submitter: past_of(keys.submitter),
            labels: past_of(keys.labels),
            environment: past_of(keys.environment),
        }
    }
}

/// The past durations for the keys of one piece of work.
#[derive(Debug, Clone, Copy)]
struct Pasts<'a> {
    command: &'a Past,
    submitter: &'a Past,
    labels: &'a Past,
    environment: &'a Past,
}

#[cfg(test)]
mod tests;
