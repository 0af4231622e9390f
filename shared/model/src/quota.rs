//! Quotas of groups, and what the governor makes of them.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Digest, Esu, ExecutorType, Group, Millis, Occupancy, SendingBuild};

/// The quota of a group. JSON, one key a group in the bucket of quotas; written by `forebay quota set`, read by governors
/// and dispatchers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// The ESU that are its own, by executor type; a type that is not named is none of its own.
    pub esu: Occupancy,
}

/// All quotas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Quotas {
    /// Those of the groups that have one.
    pub groups: BTreeMap<Group, Quota>,
    /// That of every other group; absent: as the settings say.
    pub default: Option<Quota>,
}

impl Quotas {
    /// The quota of `group`.
    pub fn of(&self, group: &Group) -> Option<&Quota> {
        self.groups.get(group).or(self.default.as_ref())
    }

    /// Whether there is none at all: then nothing is governed.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.default.is_none()
    }
}

/// What the governor decided last, for all groups. JSON, one key in the bucket of quotas; written by governors by
/// compare-and-set, so that of any number of them one makes each decision; read by dispatchers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct GovernorRecord {
    /// Counts the decisions.
    pub tick: u64,
    /// When it was made.
    pub at_ms: Millis,
    /// For each group and executor type.
    pub groups: BTreeMap<Group, BTreeMap<ExecutorType, Governed>>,
}

/// What the governor decided for one group and executor type (section 3.6 of the paper), and what it needs to go on.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Governed {
    /// Its own quota; scaled down when all quotas add up to more than the farm has.
    pub quota: Esu,
    /// The most that the set point can become: its quota and as much as one group may borrow. A build that is expected to
    /// occupy more counts as this much. Zero when no group has a quota of this type: then no build that needs it starts.
    pub limit: Esu,
    /// Process variable: ESU in use, on the average since the decision before.
    pub pv: Esu,
    /// Set point: ESU that it may use, its quota and what it borrows.
    pub sp: Esu,
    /// Manipulated variable: ESU of builds to start until the next decision, `ending` included; nothing is started when
    /// it is not positive.
    pub mv: Esu,
    /// Estimates of the builds in progress when this was decided: the average since the decision before, or the most.
    pub in_progress: Esu,
    /// Of these, what is expected to end, and be replaced, until the next decision.
    pub ending: Esu,
    /// Up to where builds may be started: `in_progress - ending + mv`. It is a level, and holds between decisions; zero
    /// when `mv` is not positive, so that nothing is started even as builds end.
    pub target: Esu,
    /// ESU that wait, by their estimates; a bounded head of the queue.
    pub waiting: Esu,
    /// Of the set point, what is other groups' quota.
    pub borrowed: Esu,
    /// The integral term of the controller, in ESU.
    pub integral: Esu,
    /// Estimates of the builds in progress, as far as they are expected to show in `pv` by now: usage lags starts.
    pub seen: Esu,
    /// Estimates of the builds that took the place of others lately, and do not show in `pv` yet.
    pub renewed: Esu,
}

/// ESU in use by what one process runs, on the average of an interval. Plain message, workers and executors to governors,
/// while anything runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsageReport {
    /// Which process: a worker's or executor's id.
    pub source: String,
    /// Milliseconds until the next report is due; after three of them this one is void.
    pub interval_ms: u64,
    /// By group.
    pub groups: BTreeMap<Group, Occupancy>,
}

/// What an action used of the executors, for the build that sent it. Plain message, executors to the worker of the build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActionUsage {
    /// The build's group.
    pub group: Group,
    /// The build.
    pub build: SendingBuild,
    /// The type of the executor.
    pub executor_type: ExecutorType,
    /// ESU held, times the seconds that they were held for.
    pub esu_seconds: Esu,
}

/// An occupancy model that was published. JSON, one key in the bucket of models; written by trainers, read by enqueuers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelNotice {
    /// Counts the models of this farm.
    pub version: u64,
    /// Where its content is in the store.
    pub digest: Digest,
    /// When it was trained.
    pub trained_at_ms: Millis,
    /// Builds that it learned from.
    pub builds: u64,
    /// Mean absolute error in ESU on builds that it did not learn from, by executor type.
    pub test_error: BTreeMap<ExecutorType, f64>,
    /// The same of the estimate of 1 ESU for each.
    pub default_error: BTreeMap<ExecutorType, f64>,
    /// Executor types that builds with targets of a rule used, by rule.
    #[serde(default)]
    pub types_by_rule: BTreeMap<String, BTreeSet<ExecutorType>>,
}
