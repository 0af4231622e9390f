//! Why a build waits, and how quotas stand: replies of the API.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{BuildId, Esu, ExecutorType, Governed, Group, Millis, Occupancy, Priority, Quota, State};

/// Request of why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WhyRequest {
    /// Which build.
    pub id: BuildId,
}

/// Reply to why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhyReply {
    /// The build.
    pub id: BuildId,
    /// Its group.
    pub group: Group,
    /// Its priority.
    pub priority: Priority,
    /// Its state; only what is enqueued waits.
    pub state: State,
    /// Since when it waits.
    pub waiting_since_ms: Millis,
    /// In a sentence.
    pub reason: String,
    /// What it is expected to occupy; this it keeps from the builds behind it.
    pub reserves: Occupancy,
    /// Milliseconds that its run is expected to take, where anything is known of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ms: Option<u64>,
    /// What keeps it in the queue; absent when it does not wait there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
}

/// What keeps a build in the queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waiting {
    /// Its place in its group's queue; 1 is the next.
    pub place: u64,
    /// Builds in that queue.
    pub queued: u64,
    /// The executor types that its group has too little of, now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub throttled_by: Vec<ThrottledBy>,
    /// Executor types whose quotas add up to nothing: it cannot start before that changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_quota: Vec<ExecutorType>,
    /// Where it counts as less than is expected of it, since its group can never have so much.
    #[serde(default, skip_serializing_if = "Occupancy::is_empty")]
    pub counts_as: Occupancy,
    /// Idle workspaces of the farm.
    pub idle_workspaces: u64,
    /// Workspaces of the farm, idle or not.
    #[serde(default)]
    pub workspaces: u64,
    /// The workers of the farm; absent where a workspace is idle, since then they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkerCounts>,
    /// Milliseconds that the builds before it are expected to run, all together; absent where something is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead_ms: Option<u64>,
    /// Its group's builds in progress, some of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_progress: Vec<InProgress>,
    /// Runs of its group that ended lately, a second: each made room for another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_per_second: Option<f64>,
    /// When it is expected to start; absent where nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_start_ms: Option<Millis>,
    /// By what; absent too where it is about to start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_by: Option<StartBasis>,
}

/// Workers that live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct WorkerCounts {
    /// Those that take builds.
    pub ready: u64,
    /// Those that finish what they run and take nothing more.
    pub draining: u64,
    /// Those that take no builds until their disk has room again.
    #[serde(default)]
    pub full: u64,
}

/// What a prediction of a start rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartBasis {
    /// How long the builds before it are expected to run, on the workspaces that there are.
    Estimates,
    /// How often runs of its group ended lately.
    Rate,
    /// The mean of both: other groups or a quota take part in who starts.
    Both,
}

/// An executor type of which a build needs more than there is for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThrottledBy {
    /// Which.
    pub executor_type: ExecutorType,
    /// What the build is expected to occupy.
    pub needed: Esu,
    /// What is left for it: the target without what is in progress and what the builds before it reserve.
    pub remaining: Esu,
    /// Up to where its group may start builds now.
    pub target: Esu,
    /// Its group's estimates in progress.
    pub in_progress: Esu,
    /// What the builds before it reserve.
    pub reserved: Esu,
}

/// A build that is offered or runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InProgress {
    /// Which.
    pub id: BuildId,
    /// What it is expected to occupy.
    pub occupancy: Occupancy,
}

/// Reply to quota.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaReply {
    /// Counts the governor's decisions.
    pub tick: u64,
    /// When the last one was made.
    pub decided_at_ms: Millis,
    /// That of groups without one of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Quota>,
    /// Every group that has a quota or a build.
    pub groups: Vec<GroupStanding>,
}

/// How a group's quota stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupStanding {
    /// The group.
    pub group: Group,
    /// Its own quota, when it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// What the governor decided last, by executor type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub governed: BTreeMap<ExecutorType, Governed>,
    /// Estimates of its builds in progress, now.
    pub in_progress: Occupancy,
    /// Builds in its queue.
    pub queued: u64,
    /// Why the first of them waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled: Option<String>,
}
