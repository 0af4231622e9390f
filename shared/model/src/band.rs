//! The order of a group's builds of the same priority.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// By what a group's builds of the same priority are ordered. What each means is a decision: see `policy::queue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BandOrder {
    /// First asked for, first started (section 4.2 of the paper; `1/fcfs` of the thesis).
    #[default]
    #[serde(alias = "request_time")]
    Fcfs,
    /// Shortest expected run first. Under lasting overload the longest never start.
    Spt,
    /// Earliest deadline first: deadlines that leave long builds more time (section 3.5.1 of the thesis).
    Edf,
    /// Shortest first; of equally long ones those that fewest workers can run (section 3.3.1 of the thesis).
    Oagm,
    /// Those first that fewest workers can run (section 3.3.4 of the thesis).
    LeastFlex,
    /// Shortest first, but whoever waits moves up: nothing starves.
    #[serde(rename = "spt-aged", alias = "spt_aged")]
    SptAged,
}

impl BandOrder {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Fcfs, Self::Spt, Self::Edf, Self::Oagm, Self::LeastFlex, Self::SptAged];

    /// Its name in settings and in the notation of simulated policies.
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
