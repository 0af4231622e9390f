//! What builds of each priority cost: table 6 of Google's paper on its build service (2020).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Group, Millis, Priority};

/// Request of `forebay.archive.report`: builds and actions by priority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportRequest {
    /// Only builds submitted and actions accepted at this time or later.
    pub since_ms: Millis,
    /// Only builds and actions of this group; absent: of all groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
}

/// Reply to `forebay.archive.report`: figures by priority.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportReply {
    /// One entry for each priority, the most urgent first.
    pub priorities: Vec<PriorityReport>,
    /// Whether older builds or actions were left out, because a report reads at most the last 1,000,000 of each.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// Means of the builds of a priority. Rejected builds do not count. A mean is absent if no build has a value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PriorityReport {
    /// Priority of the builds.
    pub priority: Priority,
    /// Number of builds that count.
    pub builds: u64,
    /// Their share of the builds of all priorities, 0 to 1.
    pub share: f64,
    /// Size of a build as it was accepted, in bytes of JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<f64>,
    /// Targets that a build names; of a job, its tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<f64>,
    /// Wait of the last attempt in the queue of builds, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_ms: Option<f64>,
    /// Preparation of the workspace, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preparation_ms: Option<f64>,
    /// Number of actions that were executed.
    pub actions: u64,
    /// Wait of an action for an executor, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_queue_ms: Option<f64>,
    /// Time from the prepared workspace to the end of the build, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_ms: Option<f64>,
}
