//! What schedulers, executors and gateways say to each other.

use std::{collections::BTreeMap, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ExecutionKey, ExecutionRecord, ExecutorHome, ExecutorId, Millis, PoolName, Resources, Sequence, Skew,
};

/// What the executors of a pool offer. In the settings bucket under `pool.<name>`, written by each executor at its
/// start: what stands there is known, even when no executor lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pool {
    /// Its name.
    pub name: PoolName,
    /// Platform properties that an action may ask for, with the values on offer.
    pub properties: BTreeMap<String, Vec<String>>,
    /// Whether the input root is the action's `/`.
    #[serde(default)]
    pub root_is_input: bool,
    /// What the largest of its executors has: more can never be had.
    #[serde(default)]
    pub capacity: Resources,
}

/// An executor says that it lives, what it has in hand and how full it is. Plain message to all schedulers; also the
/// content of its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutorHeartbeat {
    /// Who; a restarted executor has a new id.
    pub executor: ExecutorId,
    /// Its pool.
    pub pool: PoolName,
    /// The machine.
    pub host: String,
    /// Its folder: what actions left warm there outlives the process, and whoever has the folder next has it too. Made once
    /// and kept in the folder.
    pub home: ExecutorHome,
    /// The process.
    pub pid: u32,
    /// Since when it runs.
    pub started_at_ms: Millis,
    /// Whether it takes work.
    pub status: ExecutorStatus,
    /// Actions it runs at a time at most.
    pub slots: u16,
    /// What it has in all.
    #[serde(default)]
    pub capacity: Resources,
    /// What those that it has in hand hold of that.
    #[serde(default)]
    pub held: Resources,
    /// What it has in hand.
    pub running: Vec<ExecutionKey>,
    /// Reservations in its queue.
    #[serde(default)]
    pub queued: u32,
    /// Its congestion window.
    #[serde(default)]
    pub window: WindowState,
    /// Milliseconds after which it counts as gone.
    pub ttl_ms: u64,
    /// How far the clock of its machine is ahead of the farm's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_skew_ms: Option<Skew>,
}

/// A congestion window, in points, and how it came to be so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WindowState {
    /// Points that may be in use. 0: there is no window.
    pub size: u32,
    /// Points in use.
    pub used: u32,
    /// Sensors that are red, each as a sentence.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub red: Vec<String>,
}

/// Whether an executor takes work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecutorStatus {
    /// It does.
    Ready,
    /// Not now: its congestion window is full or a sensor is red. It asks when it does again.
    Closed,
    /// It finishes what runs and takes nothing new.
    Draining,
    /// It goes away now; what it had in hand is free.
    Gone,
}

/// What waits and may be for one executor, and what waits no more. Plain message, scheduler to executor: it carries no
/// right to run anything, and may be lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Reservations {
    /// For its queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserve: Vec<Reservation>,
    /// Out of its queue: done, or claimed by another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trim: Vec<ExecutionKey>,
}

/// One execution that may be for one executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reservation {
    /// Which.
    pub execution: ExecutionKey,
    /// Its place among the reservations of all groups when this was sent: lower is sooner.
    pub turn: u64,
    /// Milliseconds after which it counts: those who are better for it come first.
    #[serde(default)]
    pub after_ms: u64,
}

/// An executor has room and asks for work. Request to any scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimRequest {
    /// Who.
    pub executor: ExecutorId,
    /// Its pool.
    pub pool: PoolName,
    /// What it has in all.
    pub capacity: Resources,
    /// What of that is free.
    pub free: Resources,
    /// How many more it can start.
    pub starts: u16,
    /// How many it takes in hand beyond what it can start, so that they are there when there is room.
    #[serde(default)]
    pub ahead: u16,
    /// Whether it has nothing in hand, so that an exclusive action can start.
    pub idle: bool,
    /// The first of its queue.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<ExecutionKey>,
}

impl ClaimRequest {
    /// How long an executor waits for the answer. What is claimed for it later is known by its heartbeats, which do not name it.
    pub const PATIENCE: Duration = Duration::from_secs(1);
}

/// Reply to [`ClaimRequest`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClaimReply {
    /// What is the executor's now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claimed: Vec<Claimed>,
    /// Of what it had reserved: what waits no more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trim: Vec<ExecutionKey>,
    /// Executions of its pool that still wait.
    pub waiting: u64,
}

/// An executor was answered: how full it is now, and what is its own. Plain message to all schedulers, where a pool has
/// several executors; may be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimNotice {
    /// Who.
    pub executor: ExecutorId,
    /// What is free there now.
    pub free: Resources,
    /// How many more it can start.
    pub starts: u16,
    /// What it claimed: others can forget it.
    pub claimed: Vec<ClaimedAt>,
}

/// A claim, as others are told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedAt {
    /// What was claimed.
    pub execution: ExecutionKey,
    /// Position of its last record when it was: what waits since a later one still waits.
    pub sequence: Sequence,
}

/// Executions wait again that an executor had claimed. Plain message, one scheduler to all; may be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitAgain {
    /// In this pool.
    pub pool: PoolName,
    /// Which.
    pub executions: Vec<ExecutionKey>,
}

/// An execution that is an executor's now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Claimed {
    /// Its last record.
    pub record: ExecutionRecord,
    /// The position of that record.
    pub sequence: Sequence,
    /// What it holds while it runs.
    pub size: Resources,
}

/// An executor gives back what it did not start: it goes away, or what it runs takes longer than it thought. Plain message
/// to any scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HandOver {
    /// Who.
    pub executor: ExecutorId,
    /// Its pool.
    pub pool: PoolName,
    /// What it had claimed and did not start.
    pub claimed: Vec<ExecutionKey>,
    /// What its queue held.
    pub reserved: Vec<ExecutionKey>,
}

/// An order to one executor. Plain message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "order", rename_all = "lowercase")]
pub enum ExecutorControl {
    /// The execution ended without this executor: kill its processes.
    Cancel {
        /// Which.
        execution: ExecutionKey,
    },
    /// Take nothing new.
    Drain,
    /// Take executions again.
    Resume,
}

/// What an executor is doing with an execution. Plain message on the execution's live subject, told apart from the
/// stored ones by a header; may be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionProgress {
    /// Who.
    pub executor: ExecutorId,
    /// What.
    pub stage: ExecutionStage,
    /// Since when.
    pub at_ms: Millis,
}

/// What an executor is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionStage {
    /// It fetches the inputs.
    Fetching,
    /// The command runs.
    Running,
    /// It keeps the outputs.
    Uploading,
}

/// Asks an executor for live output of an execution. Request to the executor; the reply waits until there is some.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LiveOutputRequest {
    /// Which.
    pub execution: ExecutionKey,
    /// `stdout` or `stderr`.
    pub stream: crate::OutputStream,
    /// From which byte on.
    pub offset: u64,
}

/// Reply to [`LiveOutputRequest`]; the bytes follow as the message's payload in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LiveOutputReply {
    /// Bytes from the offset on, in base64; empty when nothing came for a while.
    pub data: String,
    /// Whether the command has ended and these are the last.
    pub complete: bool,
}
