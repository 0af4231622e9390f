//! An execution: one run-to-be of an action, from ACTION_ACCEPTED to ACTION_FINISHED.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    Attempt, BlobDigest, BuildId, ExecutorId, Group, Millis, ParseIdError, PoolName, Sequence, WorkerId,
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
    /// Lower is sooner; 0 when the client says nothing.
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

/// The state of an execution: the last message on its subject. Written by gateways (accepted, cancelled), schedulers
/// (queued again, lost, expired) and executors (finished); the first ACTION_FINISHED wins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionRecord {
    /// What was accepted.
    pub execution: Execution,
    /// Which run; 1 is the first.
    pub attempt: Attempt,
    /// Position of ACTION_ACCEPTED: its place in the queue, kept when it is queued again. 0 in ACTION_ACCEPTED itself.
    pub place: Sequence,
    /// When this was written.
    pub at_ms: Millis,
    /// Where it stands.
    #[serde(flatten)]
    pub phase: ExecutionPhase,
}

/// Where an execution stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event")]
pub enum ExecutionPhase {
    /// It waits for an executor, or one has it.
    #[serde(rename = "ACTION_ACCEPTED")]
    Accepted,
    /// Its executor was lost; it waits again.
    #[serde(rename = "ACTION_REQUEUED")]
    Requeued {
        /// What became of the run before.
        reason: String,
    },
    /// It has its result.
    #[serde(rename = "ACTION_FINISHED")]
    Finished(ExecutionOutcome),
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionOutcome {
    /// Who ran it, if anyone did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<ExecutorId>,
    /// `google.rpc.Code` of the execution: 0 when the command ran to its end, whatever its exit code.
    pub code: i32,
    /// What happened, when `code` is not 0; else what the client may show.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Inputs that are not in the store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<BlobDigest>,
    /// The command's exit code, if it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The `ActionResult`, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<StoredResult>,
    /// Logs for people, by name: kept in the store when the command was killed, say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_logs: Vec<(String, BlobDigest)>,
}

/// An encoded `build.bazel.remote.execution.v2.ActionResult`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoredResult {
    /// The message itself, in base64.
    Inline(String),
    /// In the store, because it is large.
    Blob(BlobDigest),
}

impl ExecutionRecord {
    /// The first record of `execution`.
    pub fn accepted(execution: Execution) -> Self {
        let at_ms = execution.accepted_at_ms;
        Self {
            execution,
            attempt: Attempt::FIRST,
            place: Sequence(0),
            at_ms,
            phase: ExecutionPhase::Accepted,
        }
    }

    /// Whether it has its result.
    pub fn outcome(&self) -> Option<&ExecutionOutcome> {
        match &self.phase {
            ExecutionPhase::Finished(outcome) => Some(outcome),
            ExecutionPhase::Accepted | ExecutionPhase::Requeued { .. } => None,
        }
    }

    /// Its place in the queue, given the position of this very message.
    pub fn place_at(&self, sequence: Sequence) -> Sequence {
        if self.place == Sequence(0) { sequence } else { self.place }
    }

    /// The next record, written behind the one at `sequence`: it ended.
    #[must_use]
    pub fn finished(&self, sequence: Sequence, outcome: ExecutionOutcome, now: Millis) -> Self {
        self.followed(sequence, self.attempt, ExecutionPhase::Finished(outcome), now)
    }

    /// The next record, written behind the one at `sequence`: its executor was lost, it waits for another.
    #[must_use]
    pub fn requeued(&self, sequence: Sequence, reason: String, now: Millis) -> Self {
        self.followed(sequence, self.attempt.next(), ExecutionPhase::Requeued { reason }, now)
    }

    fn followed(&self, sequence: Sequence, attempt: Attempt, phase: ExecutionPhase, now: Millis) -> Self {
        Self { execution: self.execution.clone(), attempt, place: self.place_at(sequence), at_ms: now, phase }
    }
}
