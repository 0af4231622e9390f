//! Where a result of the action cache comes from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{BlobDigest, Millis, Zone};

/// Who had an action executed, what it was, and where and when it ran. Kept with its result in the action cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Provenance {
    /// Caller that asked for it first: `key:NAME`, `ISSUER:SUBJECT`, `certificate:NAME` or `build:GROUP/ID`; empty
    /// in a farm without access rules.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub caller: String,
    /// Build that sent it, as `WORKER/ID/ATTEMPT`; empty if it came from outside a build.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build: String,
    /// Trust zone of the result; absent in a farm without zones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Zone>,
    /// Instance name of the result; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instance: String,
    /// Digest of the `Action` message.
    pub action: BlobDigest,
    /// First characters of its command line; empty if a client wrote the result.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// Target that the action belongs to; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// The execution, as `GROUP/ID`; empty if a client wrote the result.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub execution: String,
    /// Executor that ran it; empty if a client wrote the result.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub executor: String,
    /// Id of the folder of this executor, which outlives its process.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub home: String,
    /// Host name of this executor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Sandbox of the command: `bubblewrap` or `none`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// Manifest of its image; absent if it saw the files of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<BlobDigest>,
    /// Time at which the result was written, by the clock of the farm.
    pub at_ms: Millis,
}

/// Request to delete results of the action cache, by `POST /v1/action-cache/purge`. Conditions that are given must all hold;
/// at least one is needed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PurgeRequest {
    /// Id of an executor, or of its folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// Digest of an action: `HASH/SIZE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<BlobDigest>,
    /// Only results written at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<Millis>,
    /// Whether to delete nothing, and only to say what would be deleted.
    pub dry_run: bool,
}

/// What a purge of the action cache did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PurgeReply {
    /// Number of results that were read.
    pub examined: u64,
    /// Number of results that the conditions select.
    pub selected: u64,
    /// Number of results that were deleted; 0 if `dry_run` was set.
    pub deleted: u64,
    /// Number of results that say nothing of where they come from, which no purge selects.
    pub without_provenance: u64,
    /// The first 1000 of those selected.
    pub results: Vec<Provenance>,
}
