//! The workloads of the thesis (section 3.6.3): kinds and numbers of jobs, their arrival rates, and their workers.

use std::{collections::BTreeMap, fmt, str::FromStr};

use replay::Worker;

use super::name::Reading;

/// A workload of the thesis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Jobs for two disjoint groups of workers; 11 workers.
    CommonParaSmall,
    /// The same as `CommonParaSmall` but longer, with 44 workers: its parallel group is far too small.
    CommonParaLarge,
    /// First short jobs, then mostly long ones; 4 workers.
    TwoPhaseSmall,
    /// The same as `TwoPhaseSmall`, with 40 workers.
    TwoPhaseLarge,
    /// Jobs of two lengths; 4 workers.
    MediumShort,
    /// Jobs of two lengths that differ more; 40 workers.
    LongShort,
    /// Five kinds of jobs for four groups of workers.
    MultiType,
}

/// Error for the name of an unknown workload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown workload {0:?}: expected one of common+para_small, common+para_large, two_phase_small, two_phase_large, \
         medium+short, long+short, multi_type"
)]
pub struct ParseWorkloadError(String);

/// A kind of job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) groups: &'static str,
    pub(crate) mean_ms: f64,
    pub(crate) deviation_ms: f64,
}

/// Order in which kinds of jobs arrive.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mix {
    /// At random, in proportion to these numbers.
    Weighted(&'static [(u64, Kind)]),
    /// First the given number of short jobs; then a long job in `long` of `of` cases.
    Phases { first: u64, long: u64, of: u64 },
}

const fn kind(name: &'static str, groups: &'static str, mean_ms: f64, deviation_ms: f64) -> Kind {
    Kind { name, groups, mean_ms, deviation_ms }
}

pub(crate) const SHORT: Kind = kind("common_short", "group_common_1", 500.0, 200.0);
pub(crate) const LONG: Kind = kind("common_long", "group_common_1", 10_000.0, 4_000.0);
const MEDIUM: Kind = kind("common_medium", "group_common_1", 2_000.0, 500.0);
const PARALLEL: Kind = kind("parallel", "group_parallel", 8_000.0, 2_000.0);
const GPU: Kind = kind("gpu_ml", "group_gpu", 1_000_000.0, 120_000.0);
const MEDIUM_2: Kind = kind("common_medium", "group_common_2", 2_000.0, 500.0);
const MEDIUM_BOTH: Kind = kind("common_medium", "group_common_1|group_common_2", 2_000.0, 500.0);
const SHORT_2: Kind = kind("common_short", "group_common_2", 500.0, 200.0);
const SHORT_BOTH: Kind = kind("common_short", "group_common_1|group_common_2", 500.0, 200.0);

impl Workload {
    /// All workloads of the thesis.
    pub const ALL: [Self; 7] = [
        Self::CommonParaSmall,
        Self::CommonParaLarge,
        Self::TwoPhaseSmall,
        Self::TwoPhaseLarge,
        Self::MediumShort,
        Self::LongShort,
        Self::MultiType,
    ];

    /// Name of the workload in the thesis.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CommonParaSmall => "common+para_small",
            Self::CommonParaLarge => "common+para_large",
            Self::TwoPhaseSmall => "two_phase_small",
            Self::TwoPhaseLarge => "two_phase_large",
            Self::MediumShort => "medium+short",
            Self::LongShort => "long+short",
            Self::MultiType => "multi_type",
        }
    }

    pub(crate) fn jobs(self) -> usize {
        match self {
            Self::CommonParaSmall | Self::MediumShort | Self::LongShort | Self::MultiType => 1000,
            Self::TwoPhaseSmall | Self::TwoPhaseLarge => 2000,
            Self::CommonParaLarge => 4000,
        }
    }

    /// Mean time between two arrivals in milliseconds. The text of the thesis has the values of `two_phase` swapped:
    /// they would leave 40 workers idle and give 4 of them ten times their capacity, against its own description.
    pub(crate) fn delay_ms(self) -> f64 {
        match self {
            Self::TwoPhaseSmall => 550.0,
            Self::TwoPhaseLarge => 45.0,
            Self::CommonParaSmall
            | Self::CommonParaLarge
            | Self::MediumShort
            | Self::LongShort
            | Self::MultiType => 100.0,
        }
    }

    /// Returns the kinds of jobs in the workload.
    pub(crate) fn mix(self, reading: Reading) -> Mix {
        match (self, reading) {
            (Self::CommonParaSmall | Self::CommonParaLarge, _) => {
                Mix::Weighted(&[(3, MEDIUM), (1, PARALLEL)])
            }
            (Self::MediumShort, _) => Mix::Weighted(&[(1, SHORT), (1, MEDIUM)]),
            (Self::LongShort, _) => Mix::Weighted(&[(4, SHORT), (1, LONG)]),
            (Self::TwoPhaseSmall | Self::TwoPhaseLarge, Reading::Text) => {
                Mix::Phases { first: 1000, long: 5, of: 6 }
            }
            // The generator advanced twice for each job, and drew from 0 to 98.
            (Self::TwoPhaseSmall | Self::TwoPhaseLarge, Reading::Code) => {
                Mix::Phases { first: 501, long: 80, of: 99 }
            }
            (Self::MultiType, Reading::Text) => {
                Mix::Weighted(&[(35, MEDIUM), (30, MEDIUM_2), (30, MEDIUM_BOTH), (4, PARALLEL), (1, GPU)])
            }
            (Self::MultiType, Reading::Code) => {
                Mix::Weighted(&[(35, MEDIUM), (30, SHORT_2), (30, SHORT_BOTH), (4, PARALLEL), (1, GPU)])
            }
        }
    }

    pub(crate) fn workers(self, reading: Reading) -> Vec<Worker> {
        let groups: &[(&str, &str, u32)] = match self {
            Self::CommonParaSmall => &[("parallel", "group_parallel", 1), ("common", "group_common_1", 10)],
            Self::CommonParaLarge => &[("parallel", "group_parallel", 4), ("common", "group_common_1", 40)],
            Self::TwoPhaseSmall | Self::MediumShort => &[("common", "group_common_1", 4)],
            Self::TwoPhaseLarge | Self::LongShort => &[("common", "group_common_1", 40)],
            Self::MultiType => &[
                ("common", "group_common_1", 6),
                ("common", "group_common_2", 4),
                ("parallel", "group_parallel", 2),
                ("gpu", "group_gpu", 4),
            ],
        };
        // One of the forty workers was missing when the published figures were made.
        let missing = match (self, reading) {
            (Self::TwoPhaseLarge | Self::LongShort, Reading::Code) => Some("common_4"),
            (_, Reading::Code | Reading::Text) => None,
        };
        let mut workers = Vec::new();
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for (name, group, count) in groups {
            for _ in 0..*count {
                let number = counts.entry(name).or_default();
                *number += 1;
                let offers = [("env", "c"), ("hwgroup", group)];
                let offers = offers.map(|(name, value)| (name.to_owned(), [value.to_owned()].into()));
                workers.push(Worker { name: format!("{name}_{number}"), offers: offers.into() });
            }
        }
        workers.retain(|worker| Some(worker.name.as_str()) != missing);
        workers
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Workload {
    type Err = ParseWorkloadError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|workload| workload.as_str() == text);
        named.ok_or_else(|| ParseWorkloadError(text.chars().take(80).collect()))
    }
}
