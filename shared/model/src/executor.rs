//! Messages between schedulers, executors and gateways.

use std::{collections::BTreeMap, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ExecutionKey, ExecutionRecord, ExecutorHome, ExecutorId, Millis, PoolName, Resources, Sequence, Skew,
};

/// Capabilities of the executors of a pool. In the settings bucket under `pool.<name>`, written by each executor at
/// its start, so that the pool is known even while none of its executors is live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pool {
    /// Name of the pool.
    pub name: PoolName,
    /// Platform properties that actions may request, with the offered values of each.
    pub properties: BTreeMap<String, Vec<String>>,
    /// Whether the input root is the action's `/`.
    #[serde(default)]
    pub root_is_input: bool,
    /// Capacity of its largest executor; actions that request more are rejected.
    #[serde(default)]
    pub capacity: Resources,
}

/// Heartbeat of an executor: its claimed executions and its load. Plain message to all schedulers; also the
/// content of its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutorHeartbeat {
    /// Id of the executor; a restarted executor has a new id.
    pub executor: ExecutorId,
    /// Pool of the executor.
    pub pool: PoolName,
    /// Host name of its machine.
    pub host: String,
    /// Id of the executor's folder, created once and kept there. Warm state of actions in the folder outlives the
    /// process and belongs to the next executor that uses the folder.
    pub home: ExecutorHome,
    /// Process id of the executor.
    pub pid: u32,
    /// Time when the executor started.
    pub started_at_ms: Millis,
    /// Whether the executor accepts work.
    pub status: ExecutorStatus,
    /// Maximum number of actions that it runs at a time; at least 1.
    pub slots: u16,
    /// Total resources of the executor.
    #[serde(default)]
    pub capacity: Resources,
    /// Resources held by its claimed executions, out of `capacity`.
    #[serde(default)]
    pub held: Resources,
    /// Executions that it has claimed and not finished.
    pub running: Vec<ExecutionKey>,
    /// Number of reservations in its queue.
    #[serde(default)]
    pub queued: u32,
    /// State of its congestion window.
    #[serde(default)]
    pub window: WindowState,
    /// Milliseconds without a heartbeat after which it counts as lost.
    pub ttl_ms: u64,
    /// Offset of its machine's clock from the farm's clock in milliseconds; absent if not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_skew_ms: Option<Skew>,
}

/// State of a congestion window, in points.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WindowState {
    /// Maximum number of points in use. 0 means that the window is off.
    pub size: u32,
    /// Points in use by running actions.
    pub used: u32,
    /// Sensors that report overload, each described by a sentence.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub red: Vec<String>,
}

/// Whether an executor accepts work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecutorStatus {
    /// The executor accepts work.
    Ready,
    /// It accepts no work for now: its congestion window is full or a sensor reports overload. It claims
    /// again when it can.
    Closed,
    /// It finishes running executions and accepts nothing new.
    Draining,
    /// It is stopping; its unfinished executions are requeued.
    Gone,
}

/// Reservations that a scheduler adds to and removes from the queue of one executor. Plain message, scheduler to
/// executor: it grants no right to run anything, and may be lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Reservations {
    /// Reservations to add to its queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserve: Vec<Reservation>,
    /// Executions to remove from its queue: finished, or claimed by another executor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trim: Vec<ExecutionKey>,
}

/// A reservation: one execution that an executor may claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reservation {
    /// Execution that is reserved.
    pub execution: ExecutionKey,
    /// Its rank among the reservations of all groups when this was sent: lower is sooner.
    pub turn: u64,
    /// Milliseconds before the reservation counts, which lets better suited executors claim first.
    #[serde(default)]
    pub after_ms: u64,
}

/// Request for work by an executor with free capacity. Request to any scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimRequest {
    /// Executor that asks for work.
    pub executor: ExecutorId,
    /// Pool of the executor.
    pub pool: PoolName,
    /// Total resources of the executor.
    pub capacity: Resources,
    /// Free resources of the executor, out of `capacity`.
    pub free: Resources,
    /// Number of executions that it can start now.
    pub starts: u16,
    /// Number of executions that it claims beyond `starts`, so that they are ready when capacity is freed.
    #[serde(default)]
    pub ahead: u16,
    /// Whether it has claimed nothing, so that an exclusive action can start.
    pub idle: bool,
    /// First reservations in its queue.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<ExecutionKey>,
}

impl ClaimRequest {
    /// How long an executor waits for the reply. Executions that are claimed for it later are detected by its
    /// heartbeats, which do not list them.
    pub const PATIENCE: Duration = Duration::from_secs(1);
}

/// Reply to [`ClaimRequest`]: the granted executions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClaimReply {
    /// Executions that the executor has now claimed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claimed: Vec<Claimed>,
    /// Reservations from the request that are no longer waiting and must be removed from the queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trim: Vec<ExecutionKey>,
    /// Number of executions of its pool that still wait.
    pub waiting: u64,
}

/// Load and claims of an executor after a [`ClaimReply`]. Plain message to all schedulers, if a pool has several
/// executors; may be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimNotice {
    /// Executor that made the claim.
    pub executor: ExecutorId,
    /// Free resources of the executor now.
    pub free: Resources,
    /// Number of executions that it can still start.
    pub starts: u16,
    /// Executions that it claimed, which other schedulers can drop.
    pub claimed: Vec<ClaimedAt>,
}

/// A claimed execution as reported to other schedulers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedAt {
    /// Execution that was claimed.
    pub execution: ExecutionKey,
    /// Position of its last record at the time of the claim; an execution with a later record waits again.
    pub sequence: Sequence,
}

/// Executions that an executor had claimed and that wait again. Plain message, one scheduler to all; may be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitAgain {
    /// Pool of the executions.
    pub pool: PoolName,
    /// Executions that wait again.
    pub executions: Vec<ExecutionKey>,
}

/// An execution that an executor has claimed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Claimed {
    /// Last record of the execution.
    pub record: ExecutionRecord,
    /// Position of that record in the event stream.
    pub sequence: Sequence,
    /// Resources that it holds while it runs.
    pub size: Resources,
}

/// An executor returns executions that it did not start, because it stops or because its running executions take
/// longer than expected. Plain message to any scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HandOver {
    /// Executor that returns them.
    pub executor: ExecutorId,
    /// Pool of the executor.
    pub pool: PoolName,
    /// Executions that it had claimed and did not start.
    pub claimed: Vec<ExecutionKey>,
    /// Reservations that were in its queue.
    pub reserved: Vec<ExecutionKey>,
}

/// Control message to one executor. Plain message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "order", rename_all = "lowercase")]
pub enum ExecutorControl {
    /// The execution ended elsewhere: kill its processes.
    Cancel {
        /// Execution to be killed.
        execution: ExecutionKey,
    },
    /// Finish running executions and accept nothing new.
    Drain,
    /// Accept executions again after `drain`.
    Resume,
}

/// Progress of an execution on its executor. Plain message on the execution's live subject, distinguished from stored
/// records by a header; may be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionProgress {
    /// Executor that runs the execution.
    pub executor: ExecutorId,
    /// Stage that the execution entered.
    pub stage: ExecutionStage,
    /// Time when the stage started.
    pub at_ms: Millis,
}

/// Stage of an execution on its executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionStage {
    /// The executor fetches the inputs.
    Fetching,
    /// The command is running.
    Running,
    /// The executor stores the outputs.
    Uploading,
}

/// Requests live output of an execution. Request to the executor, which replies once output is available.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LiveOutputRequest {
    /// Execution whose output is read.
    pub execution: ExecutionKey,
    /// Output stream to read: `stdout` or `stderr`.
    pub stream: crate::OutputStream,
    /// Offset of the first byte to return.
    pub offset: u64,
}

/// Reply to [`LiveOutputRequest`]: a piece of the output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LiveOutputReply {
    /// Output bytes from the offset on, in base64; empty if none arrived for a while.
    pub data: String,
    /// Whether the command has ended and these are the last bytes.
    pub complete: bool,
}
