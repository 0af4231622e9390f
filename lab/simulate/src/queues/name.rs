//! Names of policies, in the notation of the thesis.

use std::{fmt, str::FromStr};

use model::BandOrder;
use policy::queue::Spread;
use replay::Estimation;
use serde::{Deserialize, Serialize};

/// Which of the two experiments of the thesis to reproduce: the one that its text describes, or the one behind its
/// published figures. `docs/simulator.md` lists the differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// The experiment as the text describes it.
    #[default]
    Text,
    /// The experiment as it was run.
    Code,
}

/// A policy: `1/ORDER/ESTIMATION` for one queue, `n/SPREAD/ESTIMATION` for one queue per worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueuePolicy {
    /// A single queue for all workers.
    One(BandOrder, Estimation),
    /// A single queue whose levels of expected run time take turns, each with a share of the processing time.
    Levels(Estimation),
    /// A separate queue for each worker.
    Each(Spread, Estimation),
}

/// Error for the name of an unknown policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy {name:?}: expected one of {known}")]
pub struct ParsePolicyError {
    name: String,
    known: String,
}

impl Reading {
    /// Both readings, `text` first.
    pub const ALL: [Self; 2] = [Self::Text, Self::Code];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Code => "code",
        }
    }
}

fn knowledge(estimation: Estimation) -> &'static str {
    match estimation {
        Estimation::None => "-",
        Estimation::QueueSize => "queue_size",
        Estimation::Oracle => "oracle",
        Estimation::Imprecise => "imprecise",
    }
}

impl QueuePolicy {
    /// The fifteen policies of the thesis.
    pub const THESIS: [Self; 15] = [
        Self::One(BandOrder::Fcfs, Estimation::None),
        Self::One(BandOrder::LeastFlex, Estimation::None),
        Self::One(BandOrder::Spt, Estimation::Oracle),
        Self::One(BandOrder::Spt, Estimation::Imprecise),
        Self::One(BandOrder::Edf, Estimation::Oracle),
        Self::One(BandOrder::Edf, Estimation::Imprecise),
        Self::One(BandOrder::Oagm, Estimation::Oracle),
        Self::One(BandOrder::Oagm, Estimation::Imprecise),
        Self::Each(Spread::RoundRobin, Estimation::None),
        Self::Each(Spread::Load, Estimation::QueueSize),
        Self::Each(Spread::Load, Estimation::Oracle),
        Self::Each(Spread::Load, Estimation::Imprecise),
        Self::Each(Spread::Rand2, Estimation::QueueSize),
        Self::Each(Spread::Rand2, Estimation::Oracle),
        Self::Each(Spread::Rand2, Estimation::Imprecise),
    ];

    /// Policies that are not in the thesis's evaluation; it proposes the multi-level queue (section 3.5.2).
    pub const OURS: [Self; 4] = [
        Self::One(BandOrder::SptAged, Estimation::Oracle),
        Self::One(BandOrder::SptAged, Estimation::Imprecise),
        Self::Levels(Estimation::Oracle),
        Self::Levels(Estimation::Imprecise),
    ];

    /// All policies, those of the thesis first.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::THESIS.into_iter().chain(Self::OURS)
    }

    /// Returns the policy's knowledge of job durations.
    pub fn estimation(self) -> Estimation {
        match self {
            Self::One(_, estimation) | Self::Levels(estimation) | Self::Each(_, estimation) => estimation,
        }
    }
}

impl fmt::Display for QueuePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::One(order, estimation) => format!("1/{order}/{}", knowledge(*estimation)),
            Self::Levels(estimation) => format!("1/multi-level/{}", knowledge(*estimation)),
            Self::Each(spread, estimation) => format!("n/{}/{}", spread.as_str(), knowledge(*estimation)),
        };
        f.pad(&name)
    }
}

impl FromStr for QueuePolicy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::all().find(|policy| policy.to_string() == text).ok_or_else(|| {
            let known: Vec<String> = Self::all().map(|policy| policy.to_string()).collect();
            ParsePolicyError { name: text.chars().take(80).collect(), known: known.join(", ") }
        })
    }
}
