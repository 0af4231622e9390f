//! An execution: one run of an action, from ACTION_ACCEPTED to ACTION_FINISHED.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ActionKeys, Attempt, BlobDigest, BuildId, ExecutionId, Group, Millis, Needs, ParseIdError, PinnedImage,
    Priority, Requirements, Urgency, WorkerId, Zone,
};

/// Full name of an execution, written `GROUP/ID`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionKey {
    /// Quota group of the execution.
    pub group: Group,
    /// Id of the execution inside its group.
    pub id: ExecutionId,
}

impl fmt::Display for ExecutionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.id)
    }
}

impl FromStr for ExecutionKey {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseIdError::new("execution key", text, "expected GROUP/ID");
        let (group, id) = text.split_once('/').ok_or_else(wrong)?;
        Ok(Self { group: group.parse()?, id: id.parse()? })
    }
}

/// An execution as it was accepted. Never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Execution {
    /// Id of the execution, unique inside its group.
    pub id: ExecutionId,
    /// Quota group that the execution is queued for.
    pub group: Group,
    /// Instance name that the client used; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instance: String,
    /// Trust zone whose action cache gets the result; absent if the farm has no zones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Zone>,
    /// Caller that asked for it; empty in a farm without access rules.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub caller: String,
    /// Digest of the `Action` message.
    pub action: BlobDigest,
    /// Priority of the build that sent the action; `interactive` if it came from outside a build, and in the records
    /// of versions without this field.
    #[serde(default)]
    pub band: Priority,
    /// Order inside the band: lower runs sooner; 0 if the client gives none. Joining clients
    /// may raise band and priority: see [`crate::ExecutionRecord::urgency`].
    pub priority: i32,
    /// Platform properties that its executor must offer.
    #[serde(default, skip_serializing_if = "Requirements::is_empty")]
    pub requirements: Requirements,
    /// Maximum run time of the command in milliseconds.
    pub timeout_ms: u64,
    /// Image in which its command runs; absent if it sees the files of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<PinnedImage>,
    /// Whether the result must not be cached and the execution must not be shared between clients.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub do_not_cache: bool,
    /// Time when the gateway accepted it.
    pub accepted_at_ms: Millis,
    /// Time after which it expires in the queue.
    pub expires_at_ms: Millis,
    /// Maximum number of attempts if executors are lost; at least 1.
    pub max_attempts: Attempt,
    /// Trace context of the client as in the W3C `traceparent` header; absent if it sent none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Tool and target names sent by the client; informational.
    #[serde(default, skip_serializing_if = "ClientTool::is_empty")]
    pub client: ClientTool,
    /// Build that sent the action; absent if it came from outside a build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<SendingBuild>,
    /// Resources that the client requested.
    #[serde(default, skip_serializing_if = "Needs::is_empty")]
    pub needs: Needs,
    /// Keys under which measurements of similar earlier actions are stored.
    #[serde(default, skip_serializing_if = "ActionKeys::is_empty")]
    pub keys: ActionKeys,
}

/// The build that sent an action; the resources used by the action count as used by the build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SendingBuild {
    /// Worker that runs the build.
    pub worker: WorkerId,
    /// Id of the build.
    pub id: BuildId,
    /// Attempt of the build.
    pub attempt: Attempt,
}

impl fmt::Display for SendingBuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.worker, self.id, self.attempt)
    }
}

impl FromStr for SendingBuild {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseIdError::new("sending build", text, "expected WORKER/ID/ATTEMPT");
        let (worker, rest) = text.split_once('/').ok_or_else(wrong)?;
        let (id, attempt) = rest.split_once('/').ok_or_else(wrong)?;
        let attempt = attempt.parse().map_err(|_| wrong())?;
        Ok(Self { worker: worker.parse()?, id: id.parse()?, attempt: Attempt(attempt) })
    }
}

impl Execution {
    /// The full name of an execution.
    pub fn key(&self) -> ExecutionKey {
        ExecutionKey { group: self.group.clone(), id: self.id }
    }

    /// Its order inside the group when it was accepted.
    pub fn urgency(&self) -> Urgency {
        Urgency { band: self.band, priority: self.priority }
    }
}

/// Self-description of a client in `RequestMetadata`; informational, never used for decisions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClientTool {
    /// Name of the tool, for example `bazel`; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Id of the tool's invocation; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub invocation: String,
    /// Kind of the action, for example `CppCompile`; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mnemonic: String,
    /// Target that the action belongs to; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target: String,
}

impl ClientTool {
    /// Whether all fields are empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
