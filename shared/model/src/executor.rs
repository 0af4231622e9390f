//! Messages between schedulers, executors and gateways.

use std::{collections::BTreeMap, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ActionKey, ExecutionKey, ExecutionRecord, ExecutorHome, ExecutorId, ExecutorType, FetchRoom, ImageFetch,
    ImageReference, Millis, PoolName, RequirementsId, Resources, Sequence, SharedServicesId, Skew,
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
    /// Executor type of its executors; `x86` in records of earlier versions.
    #[serde(default = "ExecutorType::x86")]
    pub executor_type: ExecutorType,
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
    /// Executor type of its machine; `x86` in messages of earlier versions.
    #[serde(default = "ExecutorType::x86")]
    pub executor_type: ExecutorType,
    /// Maximum number of actions that it runs at a time; at least 1.
    pub slots: u16,
    /// Platform properties that actions may request of it, with the offered values of each.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, Vec<String>>,
    /// Whether the input root is the action's `/`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub root_is_input: bool,
    /// Total resources of the executor.
    #[serde(default)]
    pub capacity: Resources,
    /// Resources held by its claimed executions, out of `capacity`.
    #[serde(default)]
    pub held: Resources,
    /// Executions that it has claimed and not finished.
    pub running: Vec<ExecutionKey>,
    /// Room for more executions.
    #[serde(default)]
    pub room: Room,
    /// State of its congestion window.
    #[serde(default)]
    pub window: WindowState,
    /// Keys of the images that it has unpacked, the last used first; at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ActionKey>,
    /// The names of these images, in its lease only: they are long.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_names: Vec<ImageReference>,
    /// Ids of the shared services that run on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_services: Vec<SharedServicesId>,
    /// Milliseconds without a heartbeat after which it counts as lost.
    pub ttl_ms: u64,
    /// Offset of its machine's clock from the farm's clock in milliseconds; absent if not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_skew_ms: Option<Skew>,
}

impl ExecutorHeartbeat {
    /// Whether it accepts nothing new only because all of its slots or resources are in use.
    pub fn is_full(&self) -> bool {
        self.status == ExecutorStatus::Closed && self.window.red.is_empty()
    }

    /// What this executor offers, as a pool of its own.
    pub fn offer(&self) -> Pool {
        Pool {
            name: self.pool.clone(),
            properties: self.properties.clone(),
            root_is_input: self.root_is_input,
            capacity: self.capacity.clone(),
            executor_type: self.executor_type.clone(),
        }
    }
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

impl WindowState {
    /// Whether there is no window, and no sensor reports overload.
    pub fn is_off(&self) -> bool {
        self.size == 0 && self.red.is_empty()
    }
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

/// Part of the free room of an executor that only executions of the band `emergency` may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct KeptRoom {
    /// Number of executions that only this band may start.
    pub starts: u16,
    /// Resources that other bands leave free.
    pub resources: Resources,
}

impl KeptRoom {
    /// Whether nothing is kept.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Room of an executor for more executions: in its heartbeats, in [`RoomReport`], and in the header `Forebay-Room` of the
/// records that it writes. Of all reports of an executor, the one with the highest number is valid; it remains valid
/// until the next one, less what was granted since.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Room {
    /// Number of the report, from 1 on; 0 in the messages of an earlier version.
    pub number: u64,
    /// Number of the last grant that the report takes into account; 0 before the first.
    pub granted: u64,
    /// Free resources of the executor, out of its capacity.
    pub free: Resources,
    /// Number of executions that it can start now.
    pub starts: u16,
    /// Number of executions that it claims beyond `starts`, so that they are ready when capacity is freed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ahead: u16,
    /// Part of `free` and `starts` for the band `emergency`; unless it is idle, other executions leave it free.
    #[serde(default, skip_serializing_if = "KeptRoom::is_nothing")]
    pub kept: KeptRoom,
    /// Whether it has claimed nothing, so that an exclusive action can start.
    pub idle: bool,
    /// Room for executions whose images it has to fetch first; absent: for as many as it claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetches: Option<FetchRoom>,
}

impl Room {
    /// Whether the executor takes at least one execution.
    pub fn is_open(&self) -> bool {
        self.starts > 0 || self.ahead > 0
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(count: &u16) -> bool {
    *count == 0
}

/// Room of an executor, sent when it changed without a heartbeat or a record that carries it.
/// Plain message to all schedulers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RoomReport {
    /// Executor that reports its room.
    pub executor: ExecutorId,
    /// Room of the executor now.
    pub room: Room,
}

/// Executions granted to an executor: they are its claims from now on. Plain message, one scheduler to one executor. If
/// the executor does not confirm them by its heartbeat, they wait again. A message without
/// executions asks for a heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Grants {
    /// Number of the last grant to this executor, including these.
    pub number: u64,
    /// Executions that the executor has now claimed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claimed: Vec<Claimed>,
}

impl Grants {
    /// Maximum time after which an executor confirms a grant by a heartbeat that names it, unless the execution has ended.
    pub const CONFIRMED_AFTER: Duration = Duration::from_millis(200);
    /// Time after which a grant that is not confirmed counts as lost: its executor is asked for a heartbeat.
    pub const IN_FLIGHT_MAX: Duration = Duration::from_secs(3);
}

/// What a scheduler granted, for the other schedulers.
/// Plain message to all schedulers, while there are several; may be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GrantNotices {
    /// The grants to each executor, in the order of their numbers.
    pub grants: Vec<GrantNotice>,
}

/// Grants of a scheduler to one executor, for the other schedulers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GrantNotice {
    /// Executor that got the grants.
    pub executor: ExecutorId,
    /// Number of the last of the grants.
    pub number: u64,
    /// Resources that they hold when they start now.
    pub size: Resources,
    /// Number of executions that start now.
    pub starts: u16,
    /// Number of executions that wait until running ones end.
    pub ahead: u16,
}

/// Executions that an executor had claimed and that wait again. Plain message, one scheduler to all; may be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitAgain {
    /// Ids of their requirements, without duplicates.
    pub requirements: Vec<RequirementsId>,
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
    /// Executions that it had claimed and did not start.
    pub claimed: Vec<ExecutionKey>,
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

/// A job to the executor of its shared services: the tasks that use them have ended. Plain message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StopServices {
    /// Execution that runs the services. They are stopped as they ask for, and it ends.
    pub execution: ExecutionKey,
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
    /// How much of its image was fetched, while it is; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageFetch>,
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
