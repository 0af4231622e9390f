//! What dispatchers and workers say to each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Attempt, BuildId, Group, Millis, Occupancy, Sequence, Skew, TaskReport, WorkerId, WorkspaceKeys,
    WorkspaceKind,
};

/// A worker says that it lives and what is free. Plain message, worker to any dispatcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Heartbeat {
    /// Who.
    pub worker: WorkerId,
    /// The machine.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// Since when it runs.
    pub started_at_ms: Millis,
    /// Whether it takes offers.
    pub status: WorkerStatus,
    /// What it is short of, where its status is `full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short: Option<String>,
    /// One entry a workspace, by number.
    pub workspaces: Vec<WorkspaceState>,
    /// Milliseconds after which it counts as gone.
    pub ttl_ms: u64,
    /// How far the clock of its machine is ahead of the farm's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_skew_ms: Option<Skew>,
}

/// Whether a worker takes offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkerStatus {
    /// It does.
    Ready,
    /// It finishes what runs and takes nothing new.
    Draining,
    /// Its disk is too full to take anything new.
    Full,
    /// It goes away now.
    Gone,
}

/// What a workspace does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum WorkspaceState {
    /// Waits for an offer.
    Idle {
        /// By what the next build may find that its last build left something of use.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warm: Option<WorkspaceKeys>,
    },
    /// Runs a build.
    Busy {
        /// Its group.
        group: Group,
        /// Its id.
        id: BuildId,
    },
    /// Cannot run anything: its shim does not start.
    Broken,
}

/// A worker as `forebay workers` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerView {
    /// Its last heartbeat.
    #[serde(flatten)]
    pub heartbeat: Heartbeat,
}

/// Builds offered to one worker in one message. Request, dispatcher to worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Offers {
    /// The builds.
    pub offers: Vec<Offer>,
}

/// One build offered to one workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Offer {
    /// The build's group.
    pub group: Group,
    /// The build's id.
    pub id: BuildId,
    /// Position of the BUILD_ENQUEUED that the claim must follow.
    pub sequence: Sequence,
    /// Which workspace.
    pub workspace: u16,
    /// When the offer is void.
    pub deadline_ms: Millis,
    /// When it was picked, in microseconds since the Unix epoch.
    pub dispatched_at_us: u64,
    /// Up to where the dispatcher had read.
    pub dispatched_at_sequence: Sequence,
    /// How the workspace was chosen, for a build that asks for a warm one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_kind: Option<WorkspaceKind>,
}

/// Reply to `Offers`, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OfferReply {
    /// One verdict an offer.
    pub verdicts: Vec<OfferVerdict>,
}

/// What became of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OfferVerdict {
    /// The worker holds the lease and wrote INVOCATION_STARTED.
    Started,
    /// The workspace is taken or the worker drains: offer the build elsewhere.
    Busy,
    /// The build is not waiting at that position any more: drop the entry.
    Stale,
    /// The worker could not claim it now: offer the build again.
    Failed,
}

/// An order to one worker. Plain message or request, anyone to the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "order", rename_all = "lowercase")]
pub enum Control {
    /// How much has the build used until now? Answered by [`BuildUse`]; not at all where it does not run here.
    Measure {
        /// Its group.
        group: Group,
        /// Its id.
        id: BuildId,
        /// The run.
        attempt: Attempt,
    },
    /// The build was ended: kill it.
    Cancel {
        /// Its group.
        group: Group,
        /// Its id.
        id: BuildId,
        /// The run that was ended.
        attempt: Attempt,
    },
    /// Take nothing new.
    Drain,
    /// Take builds again.
    Resume,
}

/// What a build that runs has used until now. Reply to [`Control::Measure`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BuildUse {
    /// Seconds since its first command started, preparation included.
    pub wall_seconds: f64,
    /// CPU seconds, user and system, of all its processes.
    pub cpu_seconds: f64,
    /// The ESU that it occupied on the average, by executor type.
    pub usage: Occupancy,
}

/// What a worker did around a build. JSON on the build's `tool` subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event")]
pub enum ToolEvent {
    /// The workspace is being filled, which takes longer than a second. Every two seconds at most.
    #[serde(rename = "WORKSPACE_PREPARING")]
    WorkspacePreparing {
        /// The run.
        attempt: Attempt,
        /// What is being done.
        what: String,
        /// Files that are done.
        files: u64,
        /// Files that there are; 0 while they are counted.
        files_total: u64,
        /// Bytes that were copied.
        bytes: u64,
    },
    /// The workspace holds what was asked.
    #[serde(rename = "WORKSPACE_PREPARED")]
    WorkspacePrepared {
        /// The run.
        attempt: Attempt,
        /// Seconds it took.
        wall_seconds: f64,
    },
    /// Tasks of the build's job ended, or will never start.
    #[serde(rename = "TASKS_ENDED")]
    TasksEnded {
        /// The run.
        attempt: Attempt,
        /// Those of the job that have ended, these included.
        ended: u64,
        /// All of the job.
        tasks: u64,
        /// Since the last such event.
        reports: Vec<TaskReport>,
    },
}
