//! What a client asks for.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{BuildId, Digest, ExecutorType, Group, JobSource, Occupancy, Priority, ToolCall, WorkspaceUse};

/// A build as a client publishes it. Written by any client, read by the enqueuer.
///
/// Unknown fields are refused: a misspelt one would otherwise be ignored without a word.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildRequest {
    /// The build's id; a plain publisher may give it as `Nats-Msg-Id` instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<BuildId>,
    /// The quota group; when given it must be the subject's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// The priority; when given on a plain publish it must be the subject's. Default: interactive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// The program and its arguments; the first is looked up in `PATH`. A build has this or a job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The graph of tasks that it is, in the place of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobSource>,
    /// Environment variables of the command, beside `PATH`, `HOME`, `TMPDIR` and `FOREBAY_*`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What the workspace holds when the command starts.
    #[serde(default, skip_serializing_if = "Context::is_empty")]
    pub context: Context,
    /// Seconds the command may run, preparation included. Default: a setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// Seconds the build may wait in the queue. Default: a setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_timeout_seconds: Option<u64>,
    /// How many workers may be lost under this build before it is given up. Default: a setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Seconds that the lease of a run lives without renewal. Default: a setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_seconds: Option<u64>,
    /// Globs, relative to the workspace, of the files to keep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Whether a glob of `outputs` that no kept file matches fails the build. Default: it is told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub require_outputs: bool,
    /// What the build asks its tool to do. Default: read from the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolCall>,
    /// Whether it starts in an empty workspace or in what a similar build left. Default: fresh.
    #[serde(default, skip_serializing_if = "WorkspaceUse::is_fresh")]
    pub workspace: WorkspaceUse,
    /// The executor types that it uses, besides x86. Default: found by its flags, tags and rules.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub executor_types: BTreeSet<ExecutorType>,
    /// The ESU that it will occupy, by executor type, where its publisher knows. Default: predicted.
    #[serde(default, skip_serializing_if = "Occupancy::is_empty")]
    pub occupancy: Occupancy,
    /// Who asks for it, by whatever name; how long it will take is estimated from earlier builds of the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitter: Option<String>,
    /// Free labels, shown; how long a build will take is estimated from earlier builds with the same.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// What the workspace holds when the command starts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Context {
    /// Nothing.
    #[default]
    Empty,
    /// A copy of a folder on the worker's machine, without the data folder of a farm that lies in it.
    Directory {
        /// Its absolute path.
        path: String,
        /// Whether what the folder's `.gitignore` and `.forebayignore` files name is left out.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ignore_files: bool,
    },
    /// A revision of a git repository.
    Git {
        /// Whatever `git fetch` takes.
        url: String,
        /// A commit, tag or branch.
        revision: String,
        /// A patch applied on top, as `git apply` takes it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        patch: Option<String>,
    },
    /// A tar archive (plain or compressed), unpacked.
    Archive {
        /// An absolute path on the worker's machine, or an http(s) URL.
        location: String,
        /// What the archive's bytes must hash to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Digest>,
    },
}

impl Context {
    /// Whether there is nothing to prepare.
    pub fn is_empty(&self) -> bool {
        *self == Self::Empty
    }
}

/// The limits and defaults that a request is checked against.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestLimits {
    /// Bytes of a request message at most.
    pub request_bytes_max: usize,
    /// Times of a build that says nothing.
    pub times: TimeLimits,
    /// Times of a build of this priority that says nothing, where they differ.
    pub times_by_priority: BTreeMap<Priority, SomeTimeLimits>,
    /// Times at most.
    pub times_max: TimeLimits,
    /// Attempts when it says nothing.
    pub attempts: u32,
    /// Attempts at most.
    pub attempts_max: u32,
    /// The executor types of this farm.
    pub executor_types: BTreeSet<ExecutorType>,
}

/// How long a build may take for what, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeLimits {
    /// To run.
    pub timeout_seconds: u64,
    /// To wait.
    pub queue_timeout_seconds: u64,
    /// To renew the lease of its run.
    pub lease_ttl_seconds: u64,
}

/// Some of the time limits; what is absent is as for every build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SomeTimeLimits {
    /// To run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// To wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_timeout_seconds: Option<u64>,
    /// To renew the lease of its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_seconds: Option<u64>,
}

impl RequestLimits {
    /// What holds for a build of `priority` that says nothing.
    pub fn times_of(&self, priority: Priority) -> TimeLimits {
        let some = self.times_by_priority.get(&priority).copied().unwrap_or_default();
        TimeLimits {
            timeout_seconds: some.timeout_seconds.unwrap_or(self.times.timeout_seconds),
            queue_timeout_seconds: some.queue_timeout_seconds.unwrap_or(self.times.queue_timeout_seconds),
            lease_ttl_seconds: some.lease_ttl_seconds.unwrap_or(self.times.lease_ttl_seconds),
        }
    }
}
