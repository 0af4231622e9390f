//! By what a build finds a workspace that is warm for it. How the keys are made is a decision: see `policy`.

use std::{borrow::Cow, collections::BTreeSet, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ParseIdError;

/// A hash by which warm workspaces are found; sixteen hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WarmKey(pub u64);

impl fmt::Display for WarmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for WarmKey {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseIdError::new("workspace key", text, "16 hexadecimal digits are expected");
        if text.len() != 16 {
            return Err(wrong());
        }
        u64::from_str_radix(text, 16).map(Self).map_err(|_| wrong())
    }
}

impl Serialize for WarmKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WarmKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for WarmKey {
    fn schema_name() -> Cow<'static, str> {
        "WarmKey".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9a-f]{16}$" })
    }
}

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
