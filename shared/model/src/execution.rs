//! An execution: one run-to-be of an action, from ACTION_ACCEPTED to ACTION_FINISHED.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    ActionKeys, Attempt, BlobDigest, BuildId, Group, Millis, Needs, ParseIdError, PoolName, WorkerId,
};

/// An execution's id, made by the gateway that accepts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(transparent)]
pub struct ExecutionId(Uuid);

impl ExecutionId {
    /// A new id; ids made later sort later.
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }
}

impl fmt::Display for ExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl FromStr for ExecutionId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::try_parse(text)
            .map(Self)
            .map_err(|_| ParseIdError::new("execution id", text, "a UUID is expected"))
    }
}

impl Serialize for ExecutionId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ExecutionId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// An execution's full name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionKey {
    /// The quota group.
    pub group: Group,
    /// The id.
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
        let wrong = || ParseIdError::new("execution key", text, "GROUP/ID is expected");
        let (group, id) = text.split_once('/').ok_or_else(wrong)?;
        Ok(Self { group: group.parse()?, id: id.parse()? })
    }
}

/// What was accepted. It does not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Execution {
    /// The id.
    pub id: ExecutionId,
    /// The quota group.
    pub group: Group,
    /// The instance name of the client.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instance: String,
    /// The action.
    pub action: BlobDigest,
    /// Lower is sooner; 0 when the client says nothing. See [`crate::ExecutionRecord::priority`].
    pub priority: i32,
    /// The pool whose executors can run it.
    pub pool: PoolName,
    /// Milliseconds its command may run.
    pub timeout_ms: u64,
    /// Whether its result must not be cached, nor the execution shared.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub do_not_cache: bool,
    /// When it was accepted.
    pub accepted_at_ms: Millis,
    /// When it has waited too long.
    pub expires_at_ms: Millis,
    /// Runs at most, when executors die under it.
    pub max_attempts: Attempt,
    /// The client's trace, as in the W3C header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// What the client says of itself.
    #[serde(default, skip_serializing_if = "ClientTool::is_empty")]
    pub client: ClientTool,
    /// The build that sent it, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<SendingBuild>,
    /// What its client asks for.
    #[serde(default, skip_serializing_if = "Needs::is_empty")]
    pub needs: Needs,
    /// By what earlier actions like it are found.
    #[serde(default, skip_serializing_if = "ActionKeys::is_empty")]
    pub keys: ActionKeys,
}

/// The build that an action belongs to: what the action uses is the build's use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SendingBuild {
    /// The worker that runs it.
    pub worker: WorkerId,
    /// Its id.
    pub id: BuildId,
    /// Which run.
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
        let wrong = || ParseIdError::new("sending build", text, "WORKER/ID/ATTEMPT is expected");
        let (worker, rest) = text.split_once('/').ok_or_else(wrong)?;
        let (id, attempt) = rest.split_once('/').ok_or_else(wrong)?;
        let attempt = attempt.parse().map_err(|_| wrong())?;
        Ok(Self { worker: worker.parse()?, id: id.parse()?, attempt: Attempt(attempt) })
    }
}

impl Execution {
    /// Its full name.
    pub fn key(&self) -> ExecutionKey {
        ExecutionKey { group: self.group.clone(), id: self.id }
    }
}

/// What a client says of itself in `RequestMetadata`; nothing depends on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClientTool {
    /// The tool, `bazel` say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The invocation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub invocation: String,
    /// What kind of action, `CppCompile` say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mnemonic: String,
    /// The target.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target: String,
}

impl ClientTool {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
