//! The order of a group's builds of the same priority.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
