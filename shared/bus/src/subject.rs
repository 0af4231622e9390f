//! Every subject, as a type: `Display` builds it, `FromStr` takes it apart.

use std::{fmt, str::FromStr};

use model::{BuildId, BuildKey, ExecutorId, Group, Priority, WorkerId};

/// Names of streams and buckets.
pub mod stream {
    /// Build requests: a work queue.
    pub const REQUESTS: &str = "FOREBAY_REQUESTS";
    /// Build state and events: a log.
    pub const EVENTS: &str = "FOREBAY_EVENTS";
    /// What was refused, and why.
    pub const REJECTED: &str = "FOREBAY_REJECTED";
    /// Leases: the stream of the key-value bucket `FOREBAY_LEASES`.
    pub const LEASES: &str = "KV_FOREBAY_LEASES";
    /// Executions: a log.
    pub const ACTIONS: &str = "FOREBAY_ACTIONS";
    /// Which executors live: the stream of the key-value bucket `FOREBAY_EXECUTORS`.
    pub const EXECUTORS: &str = "KV_FOREBAY_EXECUTORS";
    /// Log streams that clients write and read.
    pub const LOGS: &str = "FOREBAY_LOGS";
    /// Quotas, and what the governor makes of them: the stream of the key-value bucket `FOREBAY_QUOTA`.
    pub const QUOTA: &str = "KV_FOREBAY_QUOTA";
    /// Occupancy models: the stream of the key-value bucket `FOREBAY_MODELS`.
    pub const MODELS: &str = "KV_FOREBAY_MODELS";
    /// How many processes pools should have: the stream of the key-value bucket `FOREBAY_SCALE`.
    pub const SCALE: &str = "KV_FOREBAY_SCALE";
    /// Settings that services share: the stream of the key-value bucket `FOREBAY_SETTINGS`.
    pub const SETTINGS: &str = "KV_FOREBAY_SETTINGS";
}

/// A subject that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("subject {found:?} does not match {pattern}")]
pub struct ParseSubjectError {
    pub(crate) pattern: &'static str,
    pub(crate) found: String,
}

/// Where a client publishes a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestSubject {
    /// The group; the right to publish here is the right to use it.
    pub group: Group,
    /// The priority; likewise.
    pub priority: Priority,
}

impl RequestSubject {
    /// The filter of one priority.
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

/// What an event of a build tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventKind {
    /// A change of state.
    Lifecycle,
    /// Output of the command.
    Console,
    /// What the worker did around it.
    Tool,
}

impl EventKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lifecycle, Self::Console, Self::Tool];

    /// The subject token.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lifecycle => "lifecycle",
            Self::Console => "console",
            Self::Tool => "tool",
        }
    }
}

impl FromStr for EventKind {
    type Err = ParseSubjectError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| ParseSubjectError { pattern: "lifecycle|console|tool", found: text.to_owned() })
    }
}

/// Where an event of a build is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSubject {
    /// The build.
    pub key: BuildKey,
    /// What the event tells of.
    pub kind: EventKind,
}

impl EventSubject {
    /// Every lifecycle message of every build.
    pub const LIFECYCLES: &str = "forebay.build.event.*.*.lifecycle";
    /// Every event of every build.
    pub const ALL: &str = "forebay.build.event.*.*.*";

    /// The lifecycle subject of `key`: the build's own.
    pub fn lifecycle(key: &BuildKey) -> Self {
        Self { key: key.clone(), kind: EventKind::Lifecycle }
    }

    /// The lifecycle subjects of the builds with this id, whatever their group.
    pub fn lifecycle_in_any_group(id: BuildId) -> String {
        format!("forebay.build.event.*.{id}.lifecycle")
    }

    /// Every event of one build.
    pub fn all_of(key: &BuildKey) -> String {
        format!("forebay.build.event.{}.{}.*", key.group, key.id)
    }

    /// The plain subject on which events of one build are repeated as they are stored.
    pub fn live_of(key: &BuildKey) -> String {
        format!("forebay.build.live.{}.{}.*", key.group, key.id)
    }
}

impl fmt::Display for EventSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "forebay.build.event.{}.{}.{}", self.key.group, self.key.id, self.kind.as_str())
    }
}

impl FromStr for EventSubject {
    type Err = ParseSubjectError;

    /// Takes the stored subject and the live one.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseSubjectError {
            pattern: "forebay.build.event.<group>.<id>.<kind>",
            found: text.to_owned(),
        };
        let rest = text
            .strip_prefix("forebay.build.event.")
            .or_else(|| text.strip_prefix("forebay.build.live."))
            .ok_or_else(wrong)?;
        let mut tokens = rest.split('.');
        let (Some(group), Some(id), Some(kind), None) =
            (tokens.next(), tokens.next(), tokens.next(), tokens.next())
        else {
            return Err(wrong());
        };
        let key =
            BuildKey { group: group.parse().map_err(|_| wrong())?, id: id.parse().map_err(|_| wrong())? };
        Ok(Self { key, kind: kind.parse().map_err(|_| wrong())? })
    }
}

/// The key of a build's lease, as a subject of the bucket's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSubject(pub BuildKey);

impl LeaseSubject {
    /// Every lease.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApiCall {
    /// Queue a build.
    Create,
    /// Read a build.
    Get,
    /// End a build.
    Cancel,
    /// Recent builds of a group.
    List,
    /// Why a build waits.
    Why,
}

impl ApiCall {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Create, Self::Get, Self::Cancel, Self::List, Self::Why];

    /// The subject token.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Get => "get",
            Self::Cancel => "cancel",
            Self::List => "list",
            Self::Why => "why",
        }
    }

    /// The subject that the service listens on.
    pub fn filter(self) -> String {
        format!("forebay.api.{}.*", self.as_str())
    }
}

/// Plain subjects, which keep nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A call of the API for one group.
    Api(ApiCall, Group),
    /// Which groups there are: a call without a group.
    ApiGroups,
    /// Where a refused plain publish is told.
    Rejected(Group),
    /// Builds offered to a worker.
    Offer(WorkerId),
    /// Orders to a worker.
    Control(WorkerId),
    /// Workers say that they live.
    Heartbeat,
    /// A dispatcher asks all workers for a heartbeat now.
    Announce,
    /// Which workers there are: a call without a group.
    Workers,
    /// What the quotas are and what is made of them: a call without a group.
    Quota,
    /// Workers and executors say what is in use by whom.
    Usage,
    /// Executors tell a worker what the actions of its builds used.
    ActionUsage(WorkerId),
    /// Schedulers tell an executor what waits that may be for it.
    ExecutorReserve(ExecutorId),
    /// An executor asks the schedulers for work.
    ExecutorClaim,
    /// A scheduler tells the others how it answered an executor.
    ExecutorClaimed,
    /// A scheduler tells the others what waits again.
    ExecutionsAgain,
    /// An executor that goes away gives back what it did not start.
    ExecutorHandOver,
    /// Orders to an executor.
    ExecutorControl(ExecutorId),
    /// Asks an executor for the live output of what it runs.
    ExecutorOutput(ExecutorId),
    /// Executors say that they live.
    ExecutorHeartbeat,
    /// A scheduler asks all executors for a heartbeat now.
    ExecutorAnnounce,
    /// A gateway asks the others who waits for an execution.
    ExecutionWaiters,
    /// Asks all gateways where they can be reached.
    GatewayWhere,
    /// A gateway came or leaves: processes that remember an address ask again.
    GatewayChanged,
    /// An executor made its pool known, or leaves: processes that remember pools read them again.
    PoolChanged,
    /// What a process wrote into the content-addressable store of a folder.
    CasUsage,
    /// Whether that store is full.
    CasState,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Api(call, group) => write!(f, "forebay.api.{}.{group}", call.as_str()),
            Self::ApiGroups => f.write_str("forebay.api.groups"),
            Self::Rejected(group) => write!(f, "forebay.build.rejected.{group}"),
            Self::Offer(worker) => write!(f, "forebay.worker.offer.{worker}"),
            Self::Control(worker) => write!(f, "forebay.worker.control.{worker}"),
            Self::Heartbeat => f.write_str("forebay.worker.heartbeat"),
            Self::Announce => f.write_str("forebay.worker.announce"),
            Self::Workers => f.write_str("forebay.api.workers"),
            Self::Quota => f.write_str("forebay.api.quota"),
            Self::Usage => f.write_str("forebay.usage"),
            Self::ActionUsage(worker) => write!(f, "forebay.worker.usage.{worker}"),
            Self::ExecutorReserve(executor) => write!(f, "forebay.executor.reserve.{executor}"),
            Self::ExecutorClaim => f.write_str("forebay.executor.claim"),
            Self::ExecutionsAgain => f.write_str("forebay.action.again"),
            Self::ExecutorClaimed => f.write_str("forebay.executor.claimed"),
            Self::ExecutorHandOver => f.write_str("forebay.executor.handover"),
            Self::ExecutorControl(executor) => write!(f, "forebay.executor.control.{executor}"),
            Self::ExecutorOutput(executor) => write!(f, "forebay.executor.output.{executor}"),
            Self::ExecutorHeartbeat => f.write_str("forebay.executor.heartbeat"),
            Self::ExecutorAnnounce => f.write_str("forebay.executor.announce"),
            Self::ExecutionWaiters => f.write_str("forebay.action.waiters"),
            Self::GatewayWhere => f.write_str("forebay.gateway.where"),
            Self::GatewayChanged => f.write_str("forebay.gateway.changed"),
            Self::PoolChanged => f.write_str("forebay.pool.changed"),
            Self::CasUsage => f.write_str("forebay.cas.usage"),
            Self::CasState => f.write_str("forebay.cas.state"),
        }
    }
}

#[cfg(test)]
mod tests;
