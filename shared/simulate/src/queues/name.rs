//! Policies by name, in the notation of the thesis.

use std::{fmt, str::FromStr};

use model::BandOrder;
use policy::queue::Spread;
use serde::{Deserialize, Serialize};

/// Which of the thesis's two experiments: what its text says, or what its published figures were made with. The differences
/// are listed in `docs/simulator.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// What the text says.
    #[default]
    Text,
    /// What was run.
    Code,
}

/// What a policy knows of how long jobs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Estimation {
    /// It does not ask.
    None,
    /// All jobs count as equally long.
    QueueSize,
    /// The truth.
    Oracle,
    /// The truth with an error drawn from those that the thesis observed (table 3.1).
    Imprecise,
}

/// A policy: `1/ORDER/ESTIMATION` for one queue, `n/SPREAD/ESTIMATION` for a queue for each worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueuePolicy {
    /// One queue.
    One(BandOrder, Estimation),
    /// A queue for each worker.
    Each(Spread, Estimation),
}

/// A policy that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {name:?}; there are {known}")]
pub struct ParsePolicyError {
    name: String,
    known: String,
}

impl Reading {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Text, Self::Code];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Code => "code",
        }
    }
}

impl Estimation {
    fn as_str(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::QueueSize => "queue_size",
            Self::Oracle => "oracle",
            Self::Imprecise => "imprecise",
        }
    }
}

impl QueuePolicy {
    /// The fifteen of the thesis.
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

    /// Those that the thesis does not have.
    pub const OURS: [Self; 2] = [
        Self::One(BandOrder::SptAged, Estimation::Oracle),
        Self::One(BandOrder::SptAged, Estimation::Imprecise),
    ];

    /// All of them, those of the thesis first.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::THESIS.into_iter().chain(Self::OURS)
    }

    /// What it knows of how long jobs run.
    pub fn estimation(self) -> Estimation {
        match self {
            Self::One(_, estimation) | Self::Each(_, estimation) => estimation,
        }
    }
}

impl fmt::Display for QueuePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::One(order, estimation) => format!("1/{order}/{}", estimation.as_str()),
            Self::Each(spread, estimation) => format!("n/{}/{}", spread.as_str(), estimation.as_str()),
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
