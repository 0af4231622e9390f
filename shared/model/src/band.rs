//! The order of a group's builds of the same priority.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Order of a group's builds of the same priority. The exact rules are policy: see `policy::queue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BandOrder {
    /// First come, first served (section 4.2 of the paper; `1/fcfs` of the thesis).
    #[default]
    #[serde(alias = "request_time")]
    Fcfs,
    /// Shortest expected run first. Under lasting overload the longest builds never start.
    Spt,
    /// Earliest deadline first, with deadlines that leave long builds more time (section 3.5.1 of the thesis).
    Edf,
    /// Shortest first; ties go to builds that the fewest workers can run (section 3.3.1 of the thesis).
    Oagm,
    /// Builds that the fewest workers can run first (section 3.3.4 of the thesis).
    LeastFlex,
    /// Shortest first, but builds gain rank while they wait, so that none starves.
    #[serde(rename = "spt-aged", alias = "spt_aged")]
    SptAged,
}

/// Order of a group's actions of the same priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ActionOrder {
    /// Invocations of clients take turns by the cost of their actions; inside an invocation, the oldest goes first.
    #[default]
    Turns,
    /// Levels of expected run time take turns, each with a share of the processing time (section 3.5.2 of the thesis).
    MultiLevel,
    /// An order of builds.
    Of(BandOrder),
}

const TURNS: &str = "turns";
const MULTI_LEVEL: &str = "multi-level";

/// The name of an unknown order of actions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown order of actions {name:?}: expected one of {known}")]
pub struct ParseActionOrderError {
    name: String,
    known: String,
}

impl ActionOrder {
    /// All orders, with those of builds.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Turns, Self::MultiLevel].into_iter().chain(BandOrder::ALL.map(Self::Of))
    }
}

impl ActionOrder {
    /// Whether it depends on the number of executors that can run an action.
    pub fn needs_flexibility(self) -> bool {
        match self {
            Self::Of(BandOrder::Oagm | BandOrder::LeastFlex) => true,
            Self::Turns
            | Self::MultiLevel
            | Self::Of(BandOrder::Fcfs | BandOrder::Spt | BandOrder::Edf | BandOrder::SptAged) => false,
        }
    }
}

impl fmt::Display for ActionOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Turns => f.write_str(TURNS),
            Self::MultiLevel => f.write_str(MULTI_LEVEL),
            Self::Of(order) => order.fmt(f),
        }
    }
}

impl FromStr for ActionOrder {
    type Err = ParseActionOrderError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::all().find(|order| order.to_string() == text).ok_or_else(|| {
            let known: Vec<String> = Self::all().map(|order| order.to_string()).collect();
            ParseActionOrderError { name: text.chars().take(80).collect(), known: known.join(", ") }
        })
    }
}

impl Serialize for ActionOrder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ActionOrder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl BandOrder {
    pub const ALL: [Self; 6] = [Self::Fcfs, Self::Spt, Self::Edf, Self::Oagm, Self::LeastFlex, Self::SptAged];

    /// Name in settings and in the notation of simulated policies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fcfs => "fcfs",
            Self::Spt => "spt",
            Self::Edf => "edf",
            Self::Oagm => "oagm",
            Self::LeastFlex => "least_flex",
            Self::SptAged => "spt-aged",
        }
    }
}

impl fmt::Display for BandOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
