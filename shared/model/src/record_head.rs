//! The few fields of stored records that readers of a whole log need: a log has millions of records.

use serde::Deserialize;

use crate::{
    ActionKeys, Attempt, BlobDigest, BuildId, BuildRequirements, ClientTool, ExecutionId, ExecutionKey,
    ExecutorHome, ExecutorId, Group, Measured, Millis, Needs, Occupancy, Priority, ReasonCode, Requirements,
    Sequence, WorkerId, WorkspaceUse, Zone,
};

/// Some fields of a [`crate::BuildRecord`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RecordHead {
    pub id: BuildId,
    pub group: Group,
    pub priority: Priority,
    pub attempt: Attempt,
    pub at_ms: Millis,
    pub submitted_at_ms: Millis,
    #[serde(default)]
    pub expected_ms: Option<u64>,
    pub timeout_seconds: u64,
    #[serde(default)]
    pub workspace: WorkspaceUse,
    #[serde(default)]
    pub occupancy: Occupancy,
    #[serde(default)]
    pub sends_actions: bool,
    #[serde(default)]
    pub requirements: BuildRequirements,
    pub event: LifecycleEvent,
    pub queue: QueueHead,
    /// The current or last attempt, if the build started.
    #[serde(default)]
    pub invocation: Option<InvocationHead>,
}

/// Name of the lifecycle event of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum LifecycleEvent {
    #[serde(rename = "BUILD_ENQUEUED")]
    Enqueued,
    #[serde(rename = "INVOCATION_STARTED")]
    Started,
    #[serde(rename = "INVOCATION_FINISHED")]
    Finished,
}

/// Some fields of [`crate::Queued`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct QueueHead {
    #[serde(default)]
    pub first_sequence: Option<Sequence>,
    pub enqueued_at_ms: Millis,
    pub expires_at_ms: Millis,
    #[serde(default)]
    pub retry: Option<RetryHead>,
}

/// Some fields of [`crate::Retry`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RetryHead {
    pub reason: ReasonHead,
    pub worker: WorkerId,
}

/// Some fields of [`crate::Reason`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct ReasonHead {
    pub code: ReasonCode,
}

/// Some fields of [`crate::Invocation`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct InvocationHead {
    pub worker: WorkerId,
    pub workspace: u16,
    pub started_at_ms: Millis,
}

/// Some fields of a [`crate::ExecutionRecord`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ExecutionHead {
    pub event: ExecutionEvent,
    pub execution: AcceptedHead,
    /// The executor that the event names.
    #[serde(default)]
    pub executor: Option<ExecutorId>,
    /// 0 until the execution finished.
    #[serde(default)]
    pub code: i32,
    #[serde(default)]
    pub exit_code: Option<i32>,
    #[serde(default)]
    pub home: Option<ExecutorHome>,
    #[serde(default)]
    pub measured: Option<Measured>,
}

/// Name of the event of an execution's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum ExecutionEvent {
    #[serde(rename = "ACTION_ACCEPTED")]
    Accepted,
    #[serde(rename = "ACTION_FINISHED")]
    Finished,
    /// The execution still waits or runs.
    #[serde(other)]
    Other,
}

/// Some fields of a [`crate::Execution`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AcceptedHead {
    pub id: ExecutionId,
    pub group: Group,
    #[serde(default)]
    pub instance: String,
    #[serde(default)]
    pub zone: Option<Zone>,
    pub action: BlobDigest,
    #[serde(default)]
    pub requirements: Requirements,
    #[serde(default)]
    pub needs: Needs,
    #[serde(default)]
    pub do_not_cache: bool,
    pub accepted_at_ms: Millis,
    #[serde(default)]
    pub client: ClientTool,
    #[serde(default)]
    pub keys: ActionKeys,
}

impl ExecutionHead {
    /// The full name of the execution.
    pub fn key(&self) -> ExecutionKey {
        ExecutionKey { group: self.execution.group.clone(), id: self.execution.id }
    }

    /// Whether the command ran to its end and exited with 0.
    pub fn is_success(&self) -> bool {
        self.code == 0 && self.exit_code == Some(0)
    }
}
