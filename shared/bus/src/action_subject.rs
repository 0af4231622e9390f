//! The subjects of executions, of executors' leases, of log streams, and of build events from outside of builds.

use std::{fmt, str::FromStr};

use model::{ExecutionKey, ExecutorId, Group, ToolInvocation};

use crate::ParseSubjectError;

/// Subject under which the records of an execution are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionSubject(pub ExecutionKey);

impl ActionSubject {
    /// Matches every record of every execution.
    pub const ALL: &str = "forebay.action.event.*.*";

    /// The plain subject on which the server republishes the records of one execution as it stores them, and on which
    /// its executor reports progress.
    pub fn live(key: &ExecutionKey) -> String {
        format!("forebay.action.live.{}.{}", key.group, key.id)
    }
}

impl fmt::Display for ActionSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "forebay.action.event.{}.{}", self.0.group, self.0.id)
    }
}

impl FromStr for ActionSubject {
    type Err = ParseSubjectError;

    /// Accepts the stored subject and the live one.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong =
            || ParseSubjectError { pattern: "forebay.action.event.<group>.<id>", found: text.to_owned() };
        let rest = text
            .strip_prefix("forebay.action.event.")
            .or_else(|| text.strip_prefix("forebay.action.live."))
            .ok_or_else(wrong)?;
        let (group, id) = rest.split_once('.').ok_or_else(wrong)?;
        Ok(Self(ExecutionKey {
            group: group.parse().map_err(|_| wrong())?,
            id: id.parse().map_err(|_| wrong())?,
        }))
    }
}

/// The key of an executor's lease, as a subject of the bucket's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorLeaseSubject(pub ExecutorId);

impl ExecutorLeaseSubject {
    /// Matches every lease of an executor.
    pub const ALL: &str = "$KV.FOREBAY_EXECUTORS.>";

    /// Those of the executors of this name.
    pub(crate) fn all_of(name: &str) -> String {
        format!("$KV.FOREBAY_EXECUTORS.{name}.*")
    }
}

impl fmt::Display for ExecutorLeaseSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "$KV.FOREBAY_EXECUTORS.{}", self.0)
    }
}

impl FromStr for ExecutorLeaseSubject {
    type Err = ParseSubjectError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong =
            || ParseSubjectError { pattern: "$KV.FOREBAY_EXECUTORS.<executor>", found: text.to_owned() };
        let id = text.strip_prefix("$KV.FOREBAY_EXECUTORS.").ok_or_else(wrong)?;
        Ok(Self(id.parse().map_err(|_| wrong())?))
    }
}

/// Subject under which the pieces of a log stream are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSubject(pub uuid::Uuid);

impl LogSubject {
    /// Matches every piece of every log stream.
    pub const ALL: &str = "forebay.log.*";

    /// The plain subject on which the server announces growth of a log stream.
    pub fn live(&self) -> String {
        format!("forebay.log.live.{}", self.0.simple())
    }
}

impl fmt::Display for LogSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "forebay.log.{}", self.0.simple())
    }
}

/// Subjects of the stream of build events of tools outside of builds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BazelSubject {
    /// Build events of one call of a tool.
    Events(Group, ToolInvocation),
    /// Names a blob that has build events, of a call inside or outside of a build.
    Blob(Group, ToolInvocation),
}

impl BazelSubject {
    /// Matches all build events of all calls outside of builds.
    pub const EVENTS: &str = "forebay.bazel.event.*.*";
    /// Matches all messages that name a blob.
    pub const BLOBS: &str = "forebay.bazel.blob.*.*";
}

impl fmt::Display for BazelSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Events(group, tool) => write!(f, "forebay.bazel.event.{group}.{tool}"),
            Self::Blob(group, tool) => write!(f, "forebay.bazel.blob.{group}.{tool}"),
        }
    }
}

impl FromStr for BazelSubject {
    type Err = ParseSubjectError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let pattern = "forebay.bazel.event|blob.<group>.<tool invocation>";
        let wrong = || ParseSubjectError { pattern, found: text.to_owned() };
        let rest = text.strip_prefix("forebay.bazel.").ok_or_else(wrong)?;
        let (kind, rest) = rest.split_once('.').ok_or_else(wrong)?;
        let (group, tool) = rest.split_once('.').ok_or_else(wrong)?;
        let (group, tool) = (group.parse().map_err(|_| wrong())?, tool.parse().map_err(|_| wrong())?);
        match kind {
            "event" => Ok(Self::Events(group, tool)),
            "blob" => Ok(Self::Blob(group, tool)),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::ExecutionId;

    use super::*;

    #[test]
    fn subjects_read_what_they_write() {
        let key = ExecutionKey { group: "web".parse().unwrap(), id: ExecutionId::generate() };
        let subject = ActionSubject(key.clone());
        assert_eq!(subject.to_string().parse(), Ok(subject.clone()));
        assert_eq!(ActionSubject::live(&key).parse(), Ok(subject));
        let lease = ExecutorLeaseSubject("executor-1".parse().unwrap());
        assert_eq!(lease.to_string().parse(), Ok(lease));
        let tool = ToolInvocation::of("a/b");
        for subject in
            [BazelSubject::Events(key.group.clone(), tool.clone()), BazelSubject::Blob(key.group, tool)]
        {
            assert_eq!(subject.to_string().parse(), Ok(subject));
        }
        assert!("forebay.action.event.web".parse::<ActionSubject>().is_err());
    }
}
