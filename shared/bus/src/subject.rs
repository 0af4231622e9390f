//! All subjects as types: `Display` formats a subject, `FromStr` parses it.

use std::{fmt, str::FromStr};

use model::{BuildId, BuildKey, ExecutorId, Group, Priority, ToolInvocation, WorkerId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The request about the own user, which every user may send.
pub(crate) const USER_INFO: &str = "$SYS.REQ.USER.INFO";

/// Names of streams and buckets.
pub mod stream {
    /// Build requests: a work queue.
    pub const REQUESTS: &str = "FOREBAY_REQUESTS";
    /// Records and events of builds: a log.
    pub const EVENTS: &str = "FOREBAY_EVENTS";
    /// Refused build requests and the reasons.
    pub const REJECTED: &str = "FOREBAY_REJECTED";
    /// Leases of builds: the stream of the key-value bucket `FOREBAY_LEASES`.
    pub const LEASES: &str = "KV_FOREBAY_LEASES";
    /// Records of executions: a log.
    pub const ACTIONS: &str = "FOREBAY_ACTIONS";
    /// Leases of live executors: the stream of the key-value bucket `FOREBAY_EXECUTORS`.
    pub const EXECUTORS: &str = "KV_FOREBAY_EXECUTORS";
    /// Build events of tools that run outside of builds: a log.
    pub const BAZEL: &str = "FOREBAY_BAZEL";
    /// Log streams that clients write and read.
    pub const LOGS: &str = "FOREBAY_LOGS";
    /// Quotas and the governor's decisions: the stream of the key-value bucket `FOREBAY_QUOTA`.
    pub const QUOTA: &str = "KV_FOREBAY_QUOTA";
    /// The governor's decisions of the last days: a log.
    pub const DECISIONS: &str = "FOREBAY_DECISIONS";
    /// Who did what to the farm, and whom it refused: a log that cannot be changed.
    pub const AUDIT: &str = "FOREBAY_AUDIT";
    /// Occupancy models: the stream of the key-value bucket `FOREBAY_MODELS`.
    pub const MODELS: &str = "KV_FOREBAY_MODELS";
    /// Environments and their versions: the stream of the key-value bucket `FOREBAY_ENVIRONMENTS`.
    pub const ENVIRONMENTS: &str = "KV_FOREBAY_ENVIRONMENTS";
    /// Target sizes of pools: the stream of the key-value bucket `FOREBAY_SCALE`.
    pub const SCALE: &str = "KV_FOREBAY_SCALE";
    /// Settings that services share: the stream of the key-value bucket `FOREBAY_SETTINGS`.
    pub const SETTINGS: &str = "KV_FOREBAY_SETTINGS";
}

/// A subject that does not match the expected pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("subject {found:?} does not match {pattern}")]
pub struct ParseSubjectError {
    pub(crate) pattern: &'static str,
    pub(crate) found: String,
}

/// Subject on which clients publish build requests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestSubject {
    /// The group; permission to publish on its subject is permission to use it.
    pub group: Group,
    /// The priority; permission to publish on its subject is permission to use it.
    pub priority: Priority,
}

impl RequestSubject {
    /// Matches every build request.
    pub const ALL: &str = "forebay.build.request.*.*";

    /// The filter for all requests of one priority.
    pub fn filter(priority: Priority) -> String {
        format!("forebay.build.request.*.{priority}")
    }
}

impl fmt::Display for RequestSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "forebay.build.request.{}.{}", self.group, self.priority)
    }
}

impl FromStr for RequestSubject {
    type Err = ParseSubjectError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseSubjectError {
            pattern: "forebay.build.request.<group>.<priority>",
            found: text.to_owned(),
        };
        let rest = text.strip_prefix("forebay.build.request.").ok_or_else(wrong)?;
        let (group, priority) = rest.split_once('.').ok_or_else(wrong)?;
        Ok(Self {
            group: group.parse().map_err(|_| wrong())?,
            priority: priority.parse().map_err(|_| wrong())?,
        })
    }
}

/// Kind of an event of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// A change of state.
    Lifecycle,
    /// Output of the command.
    Console,
    /// An action of the worker around the command.
    Tool,
    /// Build events that Bazel published.
    Bazel,
}

impl EventKind {
    /// All kinds, in the order of declaration.
    pub const ALL: [Self; 4] = [Self::Lifecycle, Self::Console, Self::Tool, Self::Bazel];

    /// The token in the subject.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lifecycle => "lifecycle",
            Self::Console => "console",
            Self::Tool => "tool",
            Self::Bazel => "bazel",
        }
    }
}

impl FromStr for EventKind {
    type Err = ParseSubjectError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| ParseSubjectError {
            pattern: "lifecycle|console|tool|bazel",
            found: text.to_owned(),
        })
    }
}

/// Subject under which an event of a build is stored. Build events of Bazel, which are many, have a token more, the id of
/// their call: the filters of those who do not want them do not match it. Of them, this is the filter for all calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSubject {
    pub key: BuildKey,
    pub kind: EventKind,
}

impl EventSubject {
    /// Matches every lifecycle message of every build.
    pub const LIFECYCLES: &str = "forebay.build.event.*.*.lifecycle";
    /// Matches every event of every build.
    pub const ALL: &str = "forebay.build.event.>";
    /// The subjects that the stream of events accepts.
    pub const ACCEPTED: [&str; 2] = ["forebay.build.event.*.*.*", "forebay.build.event.*.*.bazel.*"];

    /// The subject of the lifecycle messages of build `key`.
    pub fn lifecycle(key: &BuildKey) -> Self {
        Self { key: key.clone(), kind: EventKind::Lifecycle }
    }

    /// Matches the lifecycle subjects of all builds with this id, in any group.
    pub fn lifecycle_in_any_group(id: BuildId) -> String {
        format!("forebay.build.event.*.{id}.lifecycle")
    }

    /// The subject of the build events of one call of Bazel in build `key`.
    pub(crate) fn bazel(key: &BuildKey, tool: &ToolInvocation) -> String {
        format!("forebay.build.event.{}.{}.bazel.{tool}", key.group, key.id)
    }
}

impl fmt::Display for EventSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = if self.kind == EventKind::Bazel { ".*" } else { "" };
        write!(f, "forebay.build.event.{}.{}.{}{calls}", self.key.group, self.key.id, self.kind.as_str())
    }
}

impl FromStr for EventSubject {
    type Err = ParseSubjectError;

    /// Accepts the stored subject and the live one.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseSubjectError {
            pattern: "forebay.build.event.<group>.<id>.<kind>[.<call>]",
            found: text.to_owned(),
        };
        let rest = text
            .strip_prefix("forebay.build.event.")
            .or_else(|| text.strip_prefix("forebay.build.live."))
            .ok_or_else(wrong)?;
        let mut tokens = rest.split('.');
        let (Some(group), Some(id), Some(kind)) = (tokens.next(), tokens.next(), tokens.next()) else {
            return Err(wrong());
        };
        let key =
            BuildKey { group: group.parse().map_err(|_| wrong())?, id: id.parse().map_err(|_| wrong())? };
        let kind = kind.parse().map_err(|_| wrong())?;
        if kind == EventKind::Bazel && tokens.next().is_none() || tokens.next().is_some() {
            return Err(wrong());
        }
        Ok(Self { key, kind })
    }
}

/// The key of a build's lease, as a subject of the bucket's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSubject(pub BuildKey);

impl LeaseSubject {
    /// Matches every lease of a build.
    pub const ALL: &str = "$KV.FOREBAY_LEASES.>";
}

impl fmt::Display for LeaseSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "$KV.FOREBAY_LEASES.{}.{}", self.0.group, self.0.id)
    }
}

impl FromStr for LeaseSubject {
    type Err = ParseSubjectError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong =
            || ParseSubjectError { pattern: "$KV.FOREBAY_LEASES.<group>.<id>", found: text.to_owned() };
        let rest = text.strip_prefix("$KV.FOREBAY_LEASES.").ok_or_else(wrong)?;
        let (group, id) = rest.split_once('.').ok_or_else(wrong)?;
        Ok(Self(BuildKey {
            group: group.parse().map_err(|_| wrong())?,
            id: id.parse().map_err(|_| wrong())?,
        }))
    }
}

/// The calls of the request/reply API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ApiCall {
    /// Create a new build.
    Create,
    /// Read a build's record.
    Get,
    /// Cancel a build that has not ended.
    Cancel,
    /// List recent builds of a group.
    List,
    /// Explain why a build waits.
    Why,
    /// Read events of a build after a position.
    Events,
}

impl ApiCall {
    /// All calls, in the order of declaration.
    pub const ALL: [Self; 6] = [Self::Create, Self::Get, Self::Cancel, Self::List, Self::Why, Self::Events];

    /// The token in the subject.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Get => "get",
            Self::Cancel => "cancel",
            Self::List => "list",
            Self::Why => "why",
            Self::Events => "events",
        }
    }

    /// The subject that the service subscribes to.
    pub fn filter(self) -> String {
        format!("forebay.api.{}.*", self.as_str())
    }
}

/// The calls of the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArchiveCall {
    /// Read an archived build.
    Get,
    /// Find the builds that an id means.
    Find,
    /// List builds of the archive.
    List,
    /// Read a run of a build, by its id.
    Invocation,
    /// Read all runs of a build.
    Invocations,
    /// Read the console output of runs.
    Console,
    /// List the actions that a build sent.
    Actions,
    /// Report figures of past runs.
    History,
    /// List calls of build tools that published their events.
    ToolInvocations,
    /// List the targets of one such call.
    Targets,
    /// List the attempts of the tests of one such call.
    Tests,
    /// Compare the results of tests in several such calls.
    TestGrid,
    /// Report what builds of each priority cost.
    Report,
    /// List audit events that match.
    Audit,
    /// Report how far the archive has read.
    Status,
}

impl ArchiveCall {
    /// All calls, in the order of declaration.
    pub const ALL: [Self; 15] = [
        Self::Get,
        Self::Find,
        Self::List,
        Self::Invocation,
        Self::Invocations,
        Self::Console,
        Self::Actions,
        Self::History,
        Self::ToolInvocations,
        Self::Targets,
        Self::Tests,
        Self::TestGrid,
        Self::Report,
        Self::Audit,
        Self::Status,
    ];

    /// The token in the subject.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Find => "find",
            Self::List => "list",
            Self::Invocation => "invocation",
            Self::Invocations => "invocations",
            Self::Console => "console",
            Self::Actions => "actions",
            Self::History => "history",
            Self::ToolInvocations => "tool_invocations",
            Self::Targets => "targets",
            Self::Tests => "tests",
            Self::TestGrid => "test_grid",
            Self::Report => "report",
            Self::Audit => "audit",
            Self::Status => "status",
        }
    }
}

/// Subjects of plain messages, which are not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A call of the API for one group.
    Api(ApiCall, Group),
    /// A call of the archive.
    Archive(ArchiveCall),
    /// Lists the groups: an API call without a group.
    ApiGroups,
    /// Lists the builds of all groups: an API call without a group.
    Builds,
    /// Reports refused build requests of a group.
    Rejected(Group),
    /// Offers builds to a worker.
    Offer(WorkerId),
    /// Sends orders to a worker.
    Control(WorkerId),
    /// Heartbeats of the workers.
    Heartbeat,
    /// A dispatcher requests a heartbeat from all workers now.
    Announce,
    /// Lists the workers: an API call without a group.
    Workers,
    /// Lists the quotas and the governor's decisions: an API call without a group.
    Quota,
    /// Workers and executors report the resources in use by each group.
    Usage,
    /// Executors report to a worker the resources used by the actions of its builds.
    ActionUsage(WorkerId),
    /// A scheduler grants executions to an executor.
    ExecutorGrant(ExecutorId),
    /// An executor reports its room to the schedulers.
    ExecutorRoom,
    /// A scheduler informs the others what it granted to an executor.
    ExecutorGranted,
    /// A scheduler informs the others of requeued executions.
    ExecutionsAgain,
    /// An executor that shuts down returns executions that it did not start.
    ExecutorHandOver,
    /// Sends orders to an executor.
    ExecutorControl(ExecutorId),
    /// Orders an executor to stop the shared services of a job.
    ExecutorServices(ExecutorId),
    /// Requests the live output of an execution from its executor.
    ExecutorOutput(ExecutorId),
    /// Heartbeats of the executors.
    ExecutorHeartbeat,
    /// A scheduler requests a heartbeat from all executors now.
    ExecutorAnnounce,
    /// A gateway asks the others whether clients wait for an execution.
    ExecutionWaiters,
    /// Requests the addresses of all gateways.
    GatewayWhere,
    /// A gateway started or shuts down: processes that cache an address refresh it.
    GatewayChanged,
    /// An executor registered its pool or shuts down: processes that cache pools refresh them.
    PoolChanged,
    /// A trace is worth keeping: processes that hold spans of it export them.
    TraceKeep,
    /// Reports bytes that a process wrote into the content-addressable store of a folder.
    CasUsage,
    /// Reports whether that store is full.
    CasState,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Api(call, group) => write!(f, "forebay.api.{}.{group}", call.as_str()),
            Self::Archive(call) => write!(f, "forebay.archive.{}", call.as_str()),
            Self::ApiGroups => f.write_str("forebay.api.groups"),
            Self::Builds => f.write_str("forebay.api.list"),
            Self::Rejected(group) => write!(f, "forebay.build.rejected.{group}"),
            Self::Offer(worker) => write!(f, "forebay.worker.offer.{worker}"),
            Self::Control(worker) => write!(f, "forebay.worker.control.{worker}"),
            Self::Heartbeat => f.write_str("forebay.worker.heartbeat"),
            Self::Announce => f.write_str("forebay.worker.announce"),
            Self::Workers => f.write_str("forebay.api.workers"),
            Self::Quota => f.write_str("forebay.api.quota"),
            Self::Usage => f.write_str("forebay.usage"),
            Self::ActionUsage(worker) => write!(f, "forebay.worker.usage.{worker}"),
            Self::ExecutorGrant(executor) => write!(f, "forebay.executor.grant.{executor}"),
            Self::ExecutorRoom => f.write_str("forebay.executor.room"),
            Self::ExecutionsAgain => f.write_str("forebay.action.again"),
            Self::ExecutorGranted => f.write_str("forebay.executor.granted"),
            Self::ExecutorHandOver => f.write_str("forebay.executor.handover"),
            Self::ExecutorControl(executor) => write!(f, "forebay.executor.control.{executor}"),
            Self::ExecutorServices(executor) => write!(f, "forebay.executor.services.{executor}"),
            Self::ExecutorOutput(executor) => write!(f, "forebay.executor.output.{executor}"),
            Self::ExecutorHeartbeat => f.write_str("forebay.executor.heartbeat"),
            Self::ExecutorAnnounce => f.write_str("forebay.executor.announce"),
            Self::ExecutionWaiters => f.write_str("forebay.action.waiters"),
            Self::GatewayWhere => f.write_str("forebay.gateway.where"),
            Self::GatewayChanged => f.write_str("forebay.gateway.changed"),
            Self::PoolChanged => f.write_str("forebay.pool.changed"),
            Self::TraceKeep => f.write_str("forebay.trace.keep"),
            Self::CasUsage => f.write_str("forebay.cas.usage"),
            Self::CasState => f.write_str("forebay.cas.state"),
        }
    }
}

#[cfg(test)]
mod tests;
