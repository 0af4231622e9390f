//! The order in which a group's executions start.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Priority;

/// Order of an execution inside its group: first the band, then the priority of the client. The smaller starts sooner.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
pub struct Urgency {
    /// Priority of the build that sent the action; `interactive` without a build.
    pub band: Priority,
    /// Priority that the client gave to the action; lower is sooner, 0 if it gave none.
    pub priority: i32,
}

impl fmt::Display for Urgency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.band, self.priority)
    }
}
