//! The order of a group's builds of the same priority.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// By what a group's builds of the same priority are ordered. What each means is a decision: see `policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BandOrder {
    /// First asked for, first started (section 4.2 of the paper).
    #[default]
    RequestTime,
}
