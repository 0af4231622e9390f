//! Why a build waits, and the state of quotas: replies of the API.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    BuildId, BuildRequirements, Esu, ExecutorType, Governed, Group, Millis, Occupancy, Priority, Quota, State,
};

/// Request of `why`: explains the wait of one build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WhyRequest {
    /// Id of the build to explain.
    pub id: BuildId,
}

/// Reply to `why`: the queue position of a build and what it waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhyReply {
    /// Id of the build.
    pub id: BuildId,
    /// Quota group of the build.
    pub group: Group,
    /// Priority of the build.
    pub priority: Priority,
    /// State of the build; only an enqueued build waits.
    pub state: State,
    /// Time when its current wait started.
    pub waiting_since_ms: Millis,
    /// Explanation in a sentence, for people.
    pub reason: String,
    /// ESU that it is expected to occupy, which are reserved ahead of later builds.
    pub reserves: Occupancy,
    /// Expected run time in milliseconds; absent without an estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ms: Option<u64>,
    /// Details of the wait; absent if it does not wait in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
}

/// Details of a build's wait in the queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waiting {
    /// Position in its group's queue; 1 is the next to start.
    pub place: u64,
    /// Number of builds in that queue.
    pub queued: u64,
    /// Executor types of which its group has too little left now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub throttled_by: Vec<ThrottledBy>,
    /// Executor types without any quota in the farm: it cannot start until one is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_quota: Vec<ExecutorType>,
    /// Reduced ESU that it counts as, because its group can never have its estimate; empty if nothing is reduced.
    #[serde(default, skip_serializing_if = "Occupancy::is_empty")]
    pub counts_as: Occupancy,
    /// Properties that its worker must offer; the workspaces and workers below are those that offer them.
    #[serde(default, skip_serializing_if = "BuildRequirements::is_empty")]
    pub requirements: BuildRequirements,
    /// Number of idle workspaces in the farm.
    pub idle_workspaces: u64,
    /// Number of these that are kept for emergencies, so that this build does not start there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kept_workspaces: u64,
    /// Number of workspaces in the farm, idle or not.
    #[serde(default)]
    pub workspaces: u64,
    /// Number of workers by status; absent if a workspace is idle, since they are then not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkerCounts>,
    /// Expected run time in milliseconds of all builds ahead of it, added up; absent without estimates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead_ms: Option<u64>,
    /// Some of its group's builds in progress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_progress: Vec<InProgress>,
    /// Recently finished runs of its group per second, each of which freed room for another; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_per_second: Option<f64>,
    /// Expected start time; absent if it cannot be predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_start_ms: Option<Millis>,
    /// Basis of `expected_start_ms`; absent without a prediction and for a build that is about to start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_by: Option<StartBasis>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Number of live workers by status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct WorkerCounts {
    /// Workers that accept builds.
    pub ready: u64,
    /// Workers that finish running builds and accept no more.
    pub draining: u64,
    /// Workers that accept no builds until their disk has free space and their store answers.
    #[serde(default)]
    pub full: u64,
}

/// Basis of a predicted start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartBasis {
    /// Expected run times of the builds ahead of it, on the existing workspaces.
    Estimates,
    /// Rate at which runs of its group ended recently.
    Rate,
    /// Mean of both predictions, used if other groups or a quota also decide which build starts.
    Both,
}

/// An executor type of which a build needs more than is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThrottledBy {
    /// Executor type that is short.
    pub executor_type: ExecutorType,
    /// Whether the executors of the farm are the limit, which all builds that run actions share; otherwise it is the
    /// quota of its group.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_executors: bool,
    /// ESU that the build is expected to occupy.
    pub needed: Esu,
    /// ESU left for it: the target minus `in_progress` and `reserved`; may be negative.
    pub remaining: Esu,
    /// Level of ESU up to which builds that share the limit may start now.
    pub target: Esu,
    /// Estimated ESU of these builds that are in progress.
    pub in_progress: Esu,
    /// ESU reserved by the builds ahead of it.
    pub reserved: Esu,
}

/// A build that is offered or running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InProgress {
    /// Id of the build.
    pub id: BuildId,
    /// ESU that it is expected to occupy.
    pub occupancy: Occupancy,
}

/// Reply to `quota`: quotas and governor decisions of all groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaReply {
    /// Number of the governor's last decision, counted from 1; 0 if none was made.
    pub tick: u64,
    /// Time of the governor's last decision.
    pub decided_at_ms: Millis,
    /// Quota of groups without their own; absent if none is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Quota>,
    /// Every group that has a quota, a build or ESU in use.
    pub groups: Vec<GroupStanding>,
    /// Last decision about all builds that run actions, by executor type; absent for types without executors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub executors: BTreeMap<ExecutorType, Governed>,
    /// Accuracy of the latest estimates of occupancy by executor type, as measured by the enqueuer that answers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub estimates: BTreeMap<ExecutorType, EstimateError>,
}

/// Error of the latest estimates of occupancy of one executor type: estimate minus use, in ESU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EstimateError {
    /// Number of builds that the means are over, at most 1000.
    pub builds: u64,
    /// Mean error in ESU: positive if estimates are too high.
    pub mean: f64,
    /// Mean absolute error in ESU.
    pub mean_absolute: f64,
    /// Mean of the squared error in ESU squared; 0 from an older enqueuer.
    #[serde(default)]
    pub mean_square: f64,
}

/// The waiting builds of a group that have one priority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingBuilds {
    /// Priority of all of them.
    pub priority: Priority,
    /// Number of these builds.
    pub count: u64,
    /// Since when the first of them waits; absent if many groups wait and this one was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_since_ms: Option<Millis>,
}

/// Quota, use and queue of one group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupStanding {
    /// Name of the group.
    pub group: Group,
    /// Its own quota; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// Last decision of the governor by executor type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub governed: BTreeMap<ExecutorType, Governed>,
    /// Estimated ESU of its builds in progress now.
    pub in_progress: Occupancy,
    /// Number of builds in its queue.
    pub queued: u64,
    /// Its waiting builds by priority, the most urgent first; absent if none waits, or from an older enqueuer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingBuilds>,
    /// Why the first build in its queue waits; absent if none waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled: Option<String>,
}
