//! By what a build finds a workspace that is warm for it. How the keys are made is a decision: see `policy`.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hash_key::hash_key;

hash_key!(
    /// A hash by which warm workspaces are found; sixteen hexadecimal digits.
    WarmKey,
    "workspace key"
);

/// The keys of a build (section 4.4 of the paper); a workspace keeps those of its last build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkspaceKeys {
    /// Branch, flags, targets and tool version together.
    pub exact: WarmKey,
    /// The tool version alone.
    pub version: WarmKey,
    /// Each target and each package, with the flags.
    pub prefixes: BTreeSet<WarmKey>,
}
