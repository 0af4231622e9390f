//! Build requests of clients.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    BlobDigest, BuildId, BuildLimits, BuildRequirements, Digest, ExecutorType, Group, JobSource, Occupancy,
    Priority, SecretRequest, ServiceRequest, ToolCall, WorkspaceUse,
};

/// A build request. Published by any client, read by the enqueuer.
///
/// Unknown fields are rejected, so that a misspelt name is not ignored silently.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildRequest {
    /// Id of the build, unique inside its group; a plain publisher may use the header `Nats-Msg-Id` instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<BuildId>,
    /// Quota group; must match the subject if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// Priority; must match the subject of a plain publish if given. Default: interactive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Program and arguments; the program is looked up in `PATH`. A build has either a command or a job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Graph of tasks to run instead of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobSource>,
    /// Environment variables of the command, in addition to `PATH`, `HOME`, `TMPDIR` and `FOREBAY_*`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Content of the workspace when the command starts. Default: empty.
    #[serde(default, skip_serializing_if = "Context::is_empty")]
    pub context: Context,
    /// Maximum run time in seconds, preparation included: 1 to the setting `timeout_seconds_max`.
    /// Default: the setting `timeout_seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// Maximum wait in the queue in seconds: 1 to the setting `queue_timeout_seconds_max`.
    /// Default: the setting `queue_timeout_seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_timeout_seconds: Option<u64>,
    /// Maximum number of attempts if workers are lost: 1 to the setting `attempts_max`.
    /// Default: the setting `attempts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Seconds after which the lease of an attempt expires unless it is renewed: 1 to the setting
    /// `lease_ttl_seconds_max`. Default: the setting `lease_ttl_seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_seconds: Option<u64>,
    /// Globs, relative to the workspace and without `..`, of the output files to keep. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Whether the build fails if a glob of `outputs` matches no kept file. Default: false, the
    /// result lists such globs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub require_outputs: bool,
    /// Build tool call, used to estimate occupancy and find a warm workspace. Default: derived from the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolCall>,
    /// Whether to start in an empty workspace or in one left by a similar build. Default: the settings `warm_by_default`,
    /// `warm_groups` and `warm_labels`, else fresh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceUse>,
    /// Executor types that the build uses in addition to x86. Default: derived from its flags, tags and rules.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub executor_types: BTreeSet<ExecutorType>,
    /// Properties that its worker must offer, by name: at most 32, and 512 bytes. Default: any worker can run it.
    #[serde(default, skip_serializing_if = "BuildRequirements::is_empty")]
    pub requirements: BuildRequirements,
    /// Secrets of the command, by name, at most 32: what its worker keeps for its group. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretRequest>,
    /// Services of the command, at most 8: commands that run beside it and serve it. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceRequest>,
    /// Limits on its resources, at most those of its group. Default: the setting `build_limits`.
    #[serde(default, skip_serializing_if = "BuildLimits::is_empty")]
    pub limits: BuildLimits,
    /// Expected ESU by executor type, 0 to 100,000 each. Default: predicted by the occupancy model.
    #[serde(default, skip_serializing_if = "Occupancy::is_empty")]
    pub occupancy: Occupancy,
    /// Name of the submitter: 1 to 200 characters without control characters. Run times are estimated from earlier
    /// builds of the same submitter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitter: Option<String>,
    /// Free-form labels by name, shown to users. Run times are estimated from earlier builds with the same labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Content of the workspace when the command starts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Context {
    /// The workspace is empty.
    #[default]
    Empty,
    /// Copy of a folder on the worker's machine. Data folders of a farm inside it are left out.
    Directory {
        /// Absolute path of the folder.
        path: String,
        /// Whether to leave out files that the folder's `.gitignore` and `.forebayignore` files match. Default: false.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ignore_files: bool,
    },
    /// Folder in the farm's store, as `forebay submit --dir` uploads it.
    Tree {
        /// Digest of the folder's `Directory` message of the Remote Execution API: `HASH/SIZE`.
        digest: BlobDigest,
        /// Name of the folder's origin, for example `HOST:/PATH`; a workspace that was filled from the same origin
        /// counts as warm. Default: the digest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<String>,
    },
    /// Checkout of a revision of a git repository.
    Git {
        /// Repository URL as accepted by `git fetch`, except `ext::` and `fd::`.
        url: String,
        /// Commit, tag or branch to check out.
        revision: String,
        /// Patch to apply on top, in the format of `git apply`. Default: none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        patch: Option<String>,
    },
    /// Unpacked tar archive, plain or compressed.
    Archive {
        /// Absolute path on the worker's machine, or an http(s) URL.
        location: String,
        /// Expected digest of the archive's bytes. Default: not checked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Digest>,
    },
}

impl Context {
    /// Whether there is nothing to prepare.
    pub fn is_empty(&self) -> bool {
        *self == Self::Empty
    }

    /// The folder in the store.
    pub fn tree(&self) -> Option<BlobDigest> {
        match self {
            Self::Tree { digest, .. } => Some(*digest),
            Self::Empty | Self::Directory { .. } | Self::Git { .. } | Self::Archive { .. } => None,
        }
    }
}

/// Limits and defaults that a request is checked against.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestLimits {
    /// Maximum size of a request message in bytes.
    pub request_bytes_max: usize,
    /// Times of builds that do not set their own.
    pub times: TimeLimits,
    /// Default times by priority, where they differ from `times`.
    pub times_by_priority: BTreeMap<Priority, SomeTimeLimits>,
    /// Maximum times that a request may ask for.
    pub times_max: TimeLimits,
    /// Default number of attempts.
    pub attempts: u32,
    /// Maximum number of attempts that a request may ask for.
    pub attempts_max: u32,
    /// Executor types of this farm.
    pub executor_types: BTreeSet<ExecutorType>,
    /// Limits of builds by group; those of [`BuildLimits::OTHER_GROUPS`] complete them, and apply to all other groups.
    pub build_limits: BTreeMap<String, BuildLimits>,
    /// Builds that start in a warm workspace although they do not ask for one.
    pub warm: WarmDefaults,
}

/// Builds that start in a warm workspace although they do not ask for one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WarmDefaults {
    /// Whether all builds do.
    pub all: bool,
    /// Quota groups whose builds do.
    pub groups: BTreeSet<Group>,
    /// Labels of builds that do.
    pub labels: BTreeMap<String, String>,
}

impl WarmDefaults {
    /// The workspace of a build that does not ask for one.
    pub fn of(&self, group: &Group, labels: &BTreeMap<String, String>) -> WorkspaceUse {
        let has_label = || labels.iter().any(|(name, value)| self.labels.get(name) == Some(value));
        if self.all || self.groups.contains(group) || has_label() {
            WorkspaceUse::Warm
        } else {
            WorkspaceUse::Fresh
        }
    }
}

/// Time limits of a build in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeLimits {
    /// Maximum run time in seconds.
    pub timeout_seconds: u64,
    /// Maximum wait in the queue in seconds.
    pub queue_timeout_seconds: u64,
    /// Seconds after which a lease expires unless it is renewed.
    pub lease_ttl_seconds: u64,
}

/// Time limits that override the general ones; absent limits do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SomeTimeLimits {
    /// Maximum run time in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// Maximum wait in the queue in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_timeout_seconds: Option<u64>,
    /// Seconds after which a lease expires unless it is renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_seconds: Option<u64>,
}

impl RequestLimits {
    /// The maximum limits of builds of `group`, which are those of builds that ask for none.
    pub fn build_limits_of(&self, group: &Group) -> BuildLimits {
        BuildLimits::of_group(&self.build_limits, group)
    }

    /// The default times of a build of `priority`.
    pub fn times_of(&self, priority: Priority) -> TimeLimits {
        let some = self.times_by_priority.get(&priority).copied().unwrap_or_default();
        TimeLimits {
            timeout_seconds: some.timeout_seconds.unwrap_or(self.times.timeout_seconds),
            queue_timeout_seconds: some.queue_timeout_seconds.unwrap_or(self.times.queue_timeout_seconds),
            lease_ttl_seconds: some.lease_ttl_seconds.unwrap_or(self.times.lease_ttl_seconds),
        }
    }
}
