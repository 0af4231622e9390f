//! Keys by which a build finds a warm workspace. How they are computed is policy: see `policy`.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hash_key::hash_key;

hash_key!(
    /// Key of a warm workspace: a 64-bit hash as 16 hexadecimal digits.
    WarmKey,
    "workspace key"
);

/// Keys of a build (section 4.4 of the paper); a workspace keeps those of its last build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkspaceKeys {
    /// Hash of branch, flags, targets and tool version together.
    pub exact: WarmKey,
    /// Hash of the tool version alone.
    pub version: WarmKey,
    /// Hash of each target and each package, combined with the flags.
    pub prefixes: BTreeSet<WarmKey>,
}
