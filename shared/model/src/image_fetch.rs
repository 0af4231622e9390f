//! Images that an executor has, and those that it has to fetch first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ActionKey;

/// What an execution needs of the images of its executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageDemand {
    /// Key of its image; absent if it may need several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ActionKey>,
    /// Key of the registry from which executors fetch it that do not have it.
    pub registry: ActionKey,
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
