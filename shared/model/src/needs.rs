//! Resources that an action requests, the keys of its history, and its measured use.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Amount, ExecutorId, Millis, Requirements, ResourceName, Resources, Urgency, hash_key::hash_key};

/// Resources that the client requests for an action; anything absent comes from history or is the default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Needs {
    /// Requested CPU in thousandths of a processor; absent: not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Requested memory in bytes; absent: not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Requested custom resources by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub custom: BTreeMap<ResourceName, Amount>,
    /// Whether it needs an executor exclusively.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// Whether it is run to measure it: no further copy of it is started.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub measured: bool,
    /// What it has to do with services that several executions share.
    #[serde(skip_serializing_if = "SharedServices::is_none")]
    pub shared_services: SharedServices,
    /// Size class that determines the defaults if neither the client nor history gives a value.
    #[serde(skip_serializing_if = "TestSize::is_none")]
    pub test_size: TestSize,
}

impl Needs {
    /// Whether the client requests nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What an execution has to do with services that several executions share. One that has anything to do with them runs once: a
/// copy or another attempt of it would find another state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SharedServices {
    /// It has nothing to do with any.
    #[default]
    None,
    /// It runs them for others, and no other command.
    Runs,
    /// Its command uses them.
    Uses,
}

impl SharedServices {
    /// Whether it has nothing to do with any.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Size class that Bazel assigns to a test, from its variable `TEST_SIZE`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TestSize {
    /// The action is not a test.
    #[default]
    None,
    /// Bazel test size `small`.
    Small,
    /// Bazel test size `medium`.
    Medium,
    /// Bazel test size `large`.
    Large,
    /// Bazel test size `enormous`, or an unknown size.
    Enormous,
}

impl TestSize {
    /// Whether the action is not a test.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

hash_key!(
    /// Key under which measurements of an action are stored: a 64-bit hash as 16 hexadecimal digits.
    ActionKey,
    "action key"
);

/// Keys under which measurements and warm places of similar actions are stored. How they are computed
/// is policy: see `policy`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ActionKeys {
    /// Keys for resource use, most specific first: exact command, target, mnemonic, as far as they are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<ActionKey>,
    /// Keys for warm places, best first: the first output or target, or the repository and branch of a CI run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub affinity: Vec<ActionKey>,
}

impl ActionKeys {
    /// Whether it has no keys.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Measured resource use of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// Wall-clock run time in milliseconds.
    pub wall_ms: u64,
    /// CPU time in milliseconds, user and system.
    pub cpu_ms: u64,
    /// Peak memory in bytes.
    pub memory_bytes: u64,
    /// Wall-clock run time in microseconds; 0 in records of earlier versions.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub wall_us: u64,
    /// CPU time in microseconds, user and system; 0 in records of earlier versions.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub cpu_us: u64,
    /// Number of times that its processes gave up the processor to wait; 0 in records of earlier versions.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub voluntary_switches: u64,
    /// Number of times that another process got the processor although they could go on; 0 in records of earlier versions.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub involuntary_switches: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_nothing(number: &u64) -> bool {
    *number == 0
}

/// What an execution needs of the images of its executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageDemand {
    /// Key of its image; absent if it may need several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ActionKey>,
    /// Key of the registry from which executors fetch it that do not have it.
    pub registry: ActionKey,
}

/// Requirements of a waiting execution, as the index stores them next to its record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Demand {
    /// Platform properties that its executor must offer.
    #[serde(default, skip_serializing_if = "Requirements::is_empty")]
    pub requirements: Requirements,
    /// Resources that it holds while it runs.
    pub size: Resources,
    /// The images that it runs in; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<ImageDemand>,
    /// Minimum capacity of its executor; absent: same as `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Resources>,
    /// Whether it needs an executor exclusively.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// Whether no further copy of it is started: it is measured, or has to do with shared services.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub single: bool,
    /// Order among the executions of its group.
    #[serde(default)]
    pub urgency: Urgency,
    /// Expected run time in milliseconds; 0 in the entries of earlier versions.
    #[serde(default)]
    pub expected_ms: u64,
    /// Start of its current wait.
    #[serde(default)]
    pub since_ms: Millis,
    /// Executors on which it failed and which it avoids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub avoid: Vec<ExecutorId>,
    /// Number of copies started in addition to the first.
    #[serde(default)]
    pub hedges: u16,
    /// Maximum number of additional copies that wait or run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u16,
    /// Run time in milliseconds that nearly all similar executions stay below; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_after_ms: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_zero(count: &u16) -> bool {
    *count == 0
}

impl Demand {
    /// The minimum capacity of its executor.
    pub fn asked(&self) -> &Resources {
        self.asked.as_ref().unwrap_or(&self.size)
    }
}
