//! What an action asks for, by what earlier ones like it are found, and what it was seen to use.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Amount, ExecutorId, Millis, ResourceName, Resources, hash_key::hash_key};

/// What an action asks for, as far as its client says; what it does not say is taken from history or is the default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Needs {
    /// Thousandths of a processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Bytes of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Custom resources.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub custom: BTreeMap<ResourceName, Amount>,
    /// Whether it must have its executor for itself.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// What it counts as where neither its client nor history says.
    #[serde(skip_serializing_if = "TestSize::is_none")]
    pub test_size: TestSize,
}

impl Needs {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The size that Bazel gives a test, by its variable `TEST_SIZE`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TestSize {
    /// It is no test.
    #[default]
    None,
    /// A small one.
    Small,
    /// A medium one.
    Medium,
    /// A large one.
    Large,
    /// An enormous one, or one of a size that is not known.
    Enormous,
}

impl TestSize {
    /// Whether it is no test.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

hash_key!(
    /// A hash by which what was learned of an action is found again; sixteen hexadecimal digits.
    ActionKey,
    "action key"
);

/// By what earlier actions like this one are found. How the keys are made is a decision: see `policy`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ActionKeys {
    /// For what it uses: its exact command, its target, its mnemonic, as far as they are known, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<ActionKey>,
    /// For where it is warm, the best first: its first output or target, or the repository and branch of a CI run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub affinity: Vec<ActionKey>,
}

impl ActionKeys {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a command was seen to use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// Milliseconds from start to end.
    pub wall_ms: u64,
    /// Milliseconds of processor time.
    pub cpu_ms: u64,
    /// Bytes of memory at its peak.
    pub memory_bytes: u64,
}

/// What a waiting execution wants of an executor, as the index keeps it beside its record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Demand {
    /// What it will hold.
    pub size: Resources,
    /// What an executor must have at all, where that is something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Resources>,
    /// Whether it must have its executor for itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// Lower is sooner.
    #[serde(default)]
    pub priority: i32,
    /// Since when it waits.
    #[serde(default)]
    pub since_ms: Millis,
    /// Executors that failed it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub avoid: Vec<ExecutorId>,
    /// Copies that were started beside the first.
    #[serde(default)]
    pub hedges: u16,
    /// Copies beside the first that wait or run, at most.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u16,
    /// What nearly all of its kind took at most, in milliseconds, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_after_ms: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_zero(count: &u16) -> bool {
    *count == 0
}

impl Demand {
    /// What an executor must have at all.
    pub fn asked(&self) -> &Resources {
        self.asked.as_ref().unwrap_or(&self.size)
    }
}
