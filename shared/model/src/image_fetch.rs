//! Images that an executor has, and those that it has to fetch first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ActionKey;

/// How much of an image was fetched from its registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageFetch {
    /// Bytes of the layers that the machine did not have.
    pub bytes: u64,
    /// Bytes of them that were fetched.
    pub fetched_bytes: u64,
}

/// Room of an executor for executions whose images it has to fetch first: until then they hold nothing else of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FetchRoom {
    /// Number of further ones that it takes.
    pub left: u16,
    /// Keys of registries that give images to as many as they may: it takes no further ones that need them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub full: Vec<ActionKey>,
}
