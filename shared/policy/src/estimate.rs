//! How long work will take, by how long work like it took (section 3.4 of the thesis).
//!
//! Each piece of work has a few [`Keys`], from the coarsest (its environment) to the finest (who submits work with these
//! labels). Of every key the last 20 durations are kept. [`EstimatorKind::Thesis`] answers with the median of the finest
//! key of which enough is known; [`EstimatorKind::Adaptive`] tries several such rules, the thesis's among them, and
//! answers with the one that was best lately on work with these labels. [`Quality`] says how good the answers were.

mod adaptive;
mod keys;
mod past;
mod quality;
mod thesis;

use std::{fmt, str::FromStr, time::Duration};

use adaptive::Scores;
pub use keys::Keys;
use past::Past;
pub use quality::{ERROR_BOUNDS, Quality, Tally};

use crate::recent::Recent;

/// Keys of which durations are kept where nobody says how many: at most some 20 MB.
const MOST_KEYS: usize = 100_000;

/// Which rule an [`Estimator`] answers by. Written as `thesis` and `adaptive`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EstimatorKind {
    /// The rule of section 3.4.1 of the thesis.
    #[default]
    Thesis,
    /// The rule that was best lately, of several.
    Adaptive,
}

impl EstimatorKind {
    /// Each of them.
    pub const ALL: [Self; 2] = [Self::Thesis, Self::Adaptive];

    /// Its name in settings and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thesis => "thesis",
            Self::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for EstimatorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no estimator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no estimator: thesis or adaptive is expected")]
pub struct UnknownEstimator(pub String);

impl FromStr for EstimatorKind {
    type Err = UnknownEstimator;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownEstimator(text.to_owned());
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(unknown)
    }
}

/// What an estimate rests on, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// Work with the very same command. The thesis's rule has no such key.
    Command,
    /// Work of the same submitter with the same labels: the thesis's author and exercise.
    Submitter,
    /// Work with the same labels: the thesis's exercise.
    Labels,
    /// Work in the same environment on the same hardware that took less than the limit.
    Environment,
    /// Nothing: half of the limit.
    HalfOfLimit,
}

impl Source {
    /// Each of them.
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

/// How long something is expected to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// Milliseconds.
    pub ms: u64,
    /// By what.
    pub source: Source,
}

impl Estimate {
    /// The same as a span of time.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.ms)
    }
}

/// What is kept of a key.
#[derive(Debug, Clone, Default)]
struct Known {
    past: Past,
    /// How the rules did on work with these labels. Of other keys it stays empty.
    scores: Option<Box<Scores>>,
}

/// Learns how long work takes and says how long more of it will. It knows nothing of time: an observation counts until
/// 20 more of its key follow, or until its key is the one that nothing was learned of for longest while there are too
/// many.
#[derive(Debug, Clone)]
pub struct Estimator {
    kind: EstimatorKind,
    known: Recent<u64, Known>,
    /// How the rules did on all work.
    scores: Scores,
}

impl Default for Estimator {
    fn default() -> Self {
        Self::new(EstimatorKind::default(), MOST_KEYS)
    }
}

impl Estimator {
    /// Nothing is known. Durations will be kept of at most so many keys; each piece of work has three or four. The key
    /// that nothing was learned of for longest is forgotten first.
    pub fn new(kind: EstimatorKind, most_keys: usize) -> Self {
        Self { kind, known: Recent::new(most_keys), scores: Scores::default() }
    }

    /// By which rule it answers.
    pub fn kind(&self) -> EstimatorKind {
        self.kind
    }

    /// Keys of which something is known.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.known.len() == 0
    }

    /// Work with these keys ran and took so long. Only what ended by itself should be told: what was cancelled, or lost
    /// with its worker, says nothing. More than 49 days count as 49 days.
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

    /// How long work with these keys is expected to take that may take at most `limit`. Without anything known it is half
    /// of that.
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

    /// What is known of each key.
    fn pasts(&self, keys: &Keys) -> Pasts<'_> {
        let of = |key| self.known.get(key).map_or(Past::NONE, |known| &known.past);
        Pasts {
            command: keys.command.map_or(Past::NONE, of),
            submitter: of(keys.submitter),
            labels: of(keys.labels),
            environment: of(keys.environment),
        }
    }
}

/// What is known of the keys of one piece of work.
#[derive(Debug, Clone, Copy)]
struct Pasts<'a> {
    command: &'a Past,
    submitter: &'a Past,
    labels: &'a Past,
    environment: &'a Past,
}

#[cfg(test)]
mod tests;
