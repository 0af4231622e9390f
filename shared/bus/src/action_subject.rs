//! The subjects of executions, of executors' leases and of log streams.

use std::{fmt, str::FromStr};

use model::{ExecutionKey, ExecutorId};

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
        assert!("forebay.action.event.web".parse::<ActionSubject>().is_err());
    }
}
