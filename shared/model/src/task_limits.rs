//! Limits of what a task or an action may use.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits of a task; absent limits come from the farm's settings. A task that exceeds a limit is killed and fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskLimits {
    /// CPU time in milliseconds, user and system, of all its processes; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Wall-clock run time in milliseconds; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    /// Memory in bytes of all its processes; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Number of processes and threads at a time; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Number of files and folders that it may add; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
    /// Number of bytes by which its folder may grow; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Number of bytes of standard output, and separately of standard error; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
}

impl TaskLimits {
    /// Whether no limit is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a limit is 0, which nothing can keep to.
    pub(crate) fn has_zero(&self) -> bool {
        let times = [self.cpu_ms, self.wall_ms];
        let amounts = [self.memory_bytes, self.processes, self.files, self.disk_bytes, self.output_bytes];
        times.into_iter().chain(amounts).flatten().any(|value| value == 0)
    }

    /// The lower of each limit and that of `others`.
    #[must_use]
    pub fn least(self, others: Self) -> Self {
        let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        Self {
            cpu_ms: least(self.cpu_ms, others.cpu_ms),
            wall_ms: least(self.wall_ms, others.wall_ms),
            memory_bytes: least(self.memory_bytes, others.memory_bytes),
            processes: least(self.processes, others.processes),
            files: least(self.files, others.files),
            disk_bytes: least(self.disk_bytes, others.disk_bytes),
            output_bytes: least(self.output_bytes, others.output_bytes),
        }
    }

    /// These limits, completed by those of `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            cpu_ms: self.cpu_ms.or(others.cpu_ms),
            wall_ms: self.wall_ms.or(others.wall_ms),
            memory_bytes: self.memory_bytes.or(others.memory_bytes),
            processes: self.processes.or(others.processes),
            files: self.files.or(others.files),
            disk_bytes: self.disk_bytes.or(others.disk_bytes),
            output_bytes: self.output_bytes.or(others.output_bytes),
        }
    }
}
