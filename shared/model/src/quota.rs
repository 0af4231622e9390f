//! Quotas of groups and decisions of the governor.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Digest, Esu, ExecutorType, Group, Millis, Occupancy, SendingBuild};

/// Quota of a group. JSON, one key per group in the bucket of quotas; written by `forebay quota set`, read
/// by governors and dispatchers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Guaranteed ESU by executor type, 0 or more; types that are not listed have no quota.
    pub esu: Occupancy,
}

/// The quotas of all groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Quotas {
    /// Quotas of the groups that have their own.
    pub groups: BTreeMap<Group, Quota>,
    /// Quota of every other group; absent: the setting `groups_without_quota` decides.
    pub default: Option<Quota>,
}

impl Quotas {
    /// The quota of `group`.
    pub fn of(&self, group: &Group) -> Option<&Quota> {
        self.groups.get(group).or(self.default.as_ref())
    }

    /// Whether no quota is set; then nothing is governed.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.default.is_none()
    }
}

/// Last decision of the governor for all groups. JSON, one key in the bucket of quotas; written by governors with
/// compare-and-set, so that exactly one of several governors makes each decision; read by dispatchers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct GovernorRecord {
    /// Number of the decision, counted from 1; 0 if none was made.
    pub tick: u64,
    /// Time of the decision.
    pub at_ms: Millis,
    /// Decision for each group and executor type.
    pub groups: BTreeMap<Group, BTreeMap<ExecutorType, Governed>>,
    /// Decision for all builds that run actions on executors, as one group with the capacity of the live executors as
    /// its quota; by executor type. It limits types of which no group has a quota. Absent for types without executors,
    /// and in records of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub executors: BTreeMap<ExecutorType, Governed>,
}

/// Decision of the governor for one group and executor type (section 3.6 of the paper), and its controller state.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Governed {
    /// Own quota in ESU, scaled down if all quotas add up to more than the farm has.
    pub quota: Esu,
    /// Maximum of the set point: the quota plus the most that one group may borrow. A build with a larger estimate
    /// counts as this much. Zero if no group has a quota of this type: then no build that needs it starts.
    pub limit: Esu,
    /// Process variable: ESU in use, averaged since the previous decision.
    pub pv: Esu,
    /// Set point: ESU that the group may use, its quota plus what it borrows.
    pub sp: Esu,
    /// Manipulated variable: ESU of builds to start until the next decision, `ending` included; nothing starts while
    /// it is zero or negative.
    pub mv: Esu,
    /// Estimated ESU of builds in progress at this decision: the average since the previous decision, or the maximum.
    pub in_progress: Esu,
    /// Part of `in_progress` that is expected to end, and be replaced, until the next decision.
    pub ending: Esu,
    /// Level up to which builds may be started, in ESU: `in_progress - ending + mv`. It holds between decisions; zero
    /// if `mv` is not positive, so that nothing starts even as builds end.
    pub target: Esu,
    /// Estimated ESU of waiting builds, from a bounded head of the queue.
    pub waiting: Esu,
    /// Part of the set point that is other groups' quota, in ESU.
    pub borrowed: Esu,
    /// Integral term of the controller, in ESU.
    pub integral: Esu,
    /// Part of the estimates in progress that is expected to show in `pv` by now, in ESU: usage lags behind starts.
    pub seen: Esu,
    /// Estimated ESU of builds that recently replaced others and do not show in `pv` yet.
    pub renewed: Esu,
}

/// ESU in use by one process, averaged over an interval. Plain message, workers and executors to governors, while
/// the process runs anything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsageReport {
    /// Id of the reporting worker or executor.
    pub source: String,
    /// Milliseconds until the next report is due; this report becomes void after three times as long.
    pub interval_ms: u64,
    /// ESU in use by group and executor type.
    pub groups: BTreeMap<Group, Occupancy>,
    /// Whether the process is an executor, not a worker; false in messages of earlier versions.
    #[serde(default)]
    pub on_executor: bool,
}

/// Executor resources used by an action of a build. Plain message, executors to the worker of the build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActionUsage {
    /// Quota group of the build.
    pub group: Group,
    /// Build that sent the action.
    pub build: SendingBuild,
    /// Type of the executor that ran the action.
    pub executor_type: ExecutorType,
    /// ESU held, multiplied by the seconds for which they were held.
    pub esu_seconds: Esu,
}

/// A published occupancy model. JSON, one key in the bucket of models; written by trainers, read by enqueuers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelNotice {
    /// Version of the model, counted from 1 in each farm.
    pub version: u64,
    /// Digest of its content in the store.
    pub digest: Digest,
    /// Size of its content in bytes; absent for models of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Time when it was trained.
    pub trained_at_ms: Millis,
    /// Number of builds in its training set.
    pub builds: u64,
    /// Mean absolute error in ESU on builds outside the training set, by executor type.
    pub test_error: BTreeMap<ExecutorType, f64>,
    /// Mean absolute error in ESU of the constant estimate of 1 ESU on the same builds, by executor type.
    pub default_error: BTreeMap<ExecutorType, f64>,
    /// Executor types used by builds that have targets of a rule, by rule.
    #[serde(default)]
    pub types_by_rule: BTreeMap<String, BTreeSet<ExecutorType>>,
}
