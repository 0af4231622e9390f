//! Comparison of two samples that makes no assumption on their distribution: by intervals of mean and standard deviation.

use super::{
    interval::Relation,
    sample::{Sample, Statistic},
};

/// How the times of one sample differ from those of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speed {
    /// Its mean is lower.
    Faster,
    /// Its mean is higher.
    Slower,
    /// Its mean is probably the same.
    Same,
    /// The samples do not decide it.
    Unknown,
}

/// How the spread of one sample differs from that of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stability {
    /// Its standard deviation is lower.
    Stabler,
    /// Its standard deviation is higher.
    LessStable,
    /// Its standard deviation is probably the same.
    Same,
    /// The samples do not decide it.
    Unknown,
}

/// How one sample of times differs from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    /// Difference of the means.
    pub speed: Speed,
    /// Difference of the standard deviations.
    pub stability: Stability,
}

/// Compares `sample` with `other` by the 95 % intervals of mean and standard deviation. Intervals that do not overlap
/// decide; if one contains the other, the statistic is probably the same; otherwise the difference is unknown.
pub fn compare(sample: &Sample, other: &Sample) -> Comparison {
    let relation = |statistic: Statistic| sample.interval(statistic).relation(other.interval(statistic));
    Comparison {
        speed: match relation(Statistic::Mean) {
            Relation::Below => Speed::Faster,
            Relation::Above => Speed::Slower,
            Relation::Same => Speed::Same,
            Relation::Unknown => Speed::Unknown,
        },
        stability: match relation(Statistic::StandardDeviation) {
            Relation::Below => Stability::Stabler,
            Relation::Above => Stability::LessStable,
            Relation::Same => Stability::Same,
            Relation::Unknown => Stability::Unknown,
        },
    }
}
