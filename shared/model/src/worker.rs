//! Messages between dispatchers and workers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    Attempt, BuildId, BuildRecord, Group, Millis, Occupancy, RunningTasks, Sequence, Skew, TaskReport,
    WindowState, WorkerId, WorkerProperties, WorkspaceKeys, WorkspaceKind,
};

/// Heartbeat of a worker with the state of its workspaces. Plain message, worker to any dispatcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Heartbeat {
    /// Id of the worker; a restarted worker has a new id.
    pub worker: WorkerId,
    /// Host name of its machine.
    pub host: String,
    /// Process id of the worker.
    pub pid: u32,
    /// Time when the worker started.
    pub started_at_ms: Millis,
    /// Whether the worker accepts offers.
    pub status: WorkerStatus,
    /// Why it accepts nothing new; present only if the status is `full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short: Option<String>,
    /// Properties that it offers to builds; absent if it offers none.
    #[serde(default, skip_serializing_if = "WorkerProperties::is_empty")]
    pub properties: WorkerProperties,
    /// State of its congestion window, counted in points: 10 for each build.
    #[serde(default, skip_serializing_if = "WindowState::is_off")]
    pub window: WindowState,
    /// State of each workspace, ordered by number from 0.
    pub workspaces: Vec<WorkspaceState>,
    /// Milliseconds without a heartbeat after which it counts as lost.
    pub ttl_ms: u64,
    /// Offset of its machine's clock from the farm's clock in milliseconds; absent if not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_skew_ms: Option<Skew>,
}

/// Whether a worker accepts offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkerStatus {
    /// The worker accepts offers.
    Ready,
    /// It finishes running builds and accepts nothing new.
    Draining,
    /// It accepts nothing new: its disk is full, its store does not answer, it could not run several builds, or one
    /// of its sensors reports overload.
    Full,
    /// It is stopping now and accepts nothing.
    Gone,
}

/// State of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum WorkspaceState {
    /// Waits for an offer.
    Idle {
        /// Keys of its last build if it left warm state; absent if the workspace is empty.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warm: Option<WorkspaceKeys>,
    },
    /// A build occupies the workspace.
    Busy {
        /// Quota group of the build.
        group: Group,
        /// Id of the build.
        id: BuildId,
    },
    /// Idle, but takes no build now: the congestion window of its worker admits none, or its shim starts.
    Closed {
        /// Keys of its last build if it left warm state; absent if the workspace is empty.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warm: Option<WorkspaceKeys>,
    },
    /// Cannot run builds: its shim does not start.
    Broken,
}

/// A worker as shown by `forebay workers`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerView {
    /// Last heartbeat of the worker.
    #[serde(flatten)]
    pub heartbeat: Heartbeat,
}

/// Builds offered to one worker in one message. Request, dispatcher to worker.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Offers {
    /// Offered builds, at most one for each workspace.
    pub offers: Vec<Offer>,
}

/// One build offered to one workspace.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Offer {
    /// Quota group of the build.
    pub group: Group,
    /// Id of the build.
    pub id: BuildId,
    /// Position of the BUILD_ENQUEUED that the claim must follow.
    pub sequence: Sequence,
    /// Number of the workspace on the worker, from 0.
    pub workspace: u16,
    /// Time after which the offer is void.
    pub deadline_ms: Millis,
    /// Time when the dispatcher picked the build, in microseconds since the Unix epoch.
    pub dispatched_at_us: u64,
    /// Position in the event stream up to which the dispatcher had read when it picked the build.
    pub dispatched_at_sequence: Sequence,
    /// How the workspace was chosen; absent unless the build asks for a warm one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_kind: Option<WorkspaceKind>,
    /// The record at `sequence` as it is stored; absent if the dispatcher did not read it. The worker then reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BuildRecord>")]
    pub record: Option<Box<RawValue>>,
}

/// Reply to [`Offers`]: one verdict for each offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OfferReply {
    /// Verdicts in the order of the offers.
    pub verdicts: Vec<OfferVerdict>,
    /// Queues that the builds left, in the order of the offers; absent if the worker does not trace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queued: Vec<Option<QueueSpan>>,
}

/// The wait of a build in its queue, as a part of its trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueSpan {
    /// When it was queued.
    pub since_ms: Millis,
    /// Span of the wait, in the format of W3C Trace Context.
    pub traceparent: String,
}

/// Verdict on an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OfferVerdict {
    /// The worker holds the lease and wrote INVOCATION_STARTED.
    Started,
    /// The workspace is in use or the worker drains: offer the build elsewhere.
    Busy,
    /// The build no longer waits at that position: drop the entry.
    Stale,
    /// The worker could not claim the build now: offer it again.
    Failed,
}

/// Control message to one worker. Plain message or request, from any service or CLI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "order", rename_all = "lowercase")]
pub enum Control {
    /// Asks for the resources that the build has used so far. Answered by [`BuildUse`]; not answered if the build does
    /// not run on this worker.
    Measure {
        /// Quota group of the build.
        group: Group,
        /// Id of the build.
        id: BuildId,
        /// Attempt that is measured.
        attempt: Attempt,
    },
    /// The build was ended: kill its processes.
    Cancel {
        /// Quota group of the build.
        group: Group,
        /// Id of the build.
        id: BuildId,
        /// Attempt that was ended.
        attempt: Attempt,
    },
    /// Finish running builds and accept nothing new.
    Drain,
    /// Accept builds again after `drain`.
    Resume,
}

/// Resources that a running build has used so far. Reply to [`Control::Measure`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BuildUse {
    /// Seconds since its first command started, preparation included.
    pub wall_seconds: f64,
    /// CPU time in seconds, user and system, of all its processes.
    pub cpu_seconds: f64,
    /// ESU occupied by executor type, averaged over the run so far.
    pub usage: Occupancy,
}

/// Event of a worker about a build. JSON on the build's `tool` subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event")]
pub enum ToolEvent {
    /// Preparation of the workspace takes longer than a second. Sent at most every two seconds.
    #[serde(rename = "WORKSPACE_PREPARING")]
    WorkspacePreparing {
        /// Attempt that the event belongs to.
        attempt: Attempt,
        /// Current step of the preparation, for people.
        what: String,
        /// Number of files and folders processed so far.
        files: u64,
        /// Total number of files and folders; 0 while they are counted.
        files_total: u64,
        /// Number of bytes copied so far.
        bytes: u64,
    },
    /// Preparation of the workspace is complete.
    #[serde(rename = "WORKSPACE_PREPARED")]
    WorkspacePrepared {
        /// Attempt that the event belongs to.
        attempt: Attempt,
        /// Duration of the preparation in seconds.
        wall_seconds: f64,
    },
    /// Tasks of the build's job ended or were skipped, or other tasks run than before.
    #[serde(rename = "TASKS_ENDED")]
    TasksEnded {
        /// Attempt that the event belongs to.
        attempt: Attempt,
        /// Number of tasks of the job that have ended so far, including those in `reports`.
        ended: u64,
        /// Total number of tasks in the job.
        tasks: u64,
        /// Reports of the tasks that ended since the previous event; empty if only `running` changed.
        reports: Vec<TaskReport>,
        /// Tasks that run now. Absent if the next event follows at once, and in events of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        running: Option<RunningTasks>,
        /// Preliminary reports of measured tasks whose first run ended since the previous event. They are not among those
        /// that ended, and their status, score and times may change.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        preliminary: Vec<TaskReport>,
    },
}
