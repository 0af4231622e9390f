//! Limits on the resources of a build.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Group;

/// Limits on all processes of a build together; absent limits come from the settings of farm and worker. A build that exceeds
/// one of them fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BuildLimits {
    /// Memory in bytes; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Number of processes and threads at a time; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Processors that they may use at a time, in thousandths; at least 10. A build that wants more is slowed down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Size in bytes of everything in its workspace; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Bytes of console output; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
}

/// A limit that is not valid, or above what is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongLimit {
    /// Name of the field.
    pub field: &'static str,
    /// Value in the request.
    pub value: u64,
    /// Minimum and maximum of the field.
    pub range: (u64, u64),
}

impl BuildLimits {
    /// The name in the setting `build_limits` that stands for all groups.
    pub const OTHER_GROUPS: &str = "*";

    /// The limits of `group` in the setting `build_limits`.
    pub fn of_group(limits: &BTreeMap<String, Self>, group: &Group) -> Self {
        let of = |name: &str| limits.get(name).copied().unwrap_or_default();
        of(group.as_str()).or(of(Self::OTHER_GROUPS))
    }

    /// Whether no limit is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These limits, completed by those of `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        self.with(others, Option::or)
    }

    /// The lower one of each limit.
    #[must_use]
    pub fn least(self, others: Self) -> Self {
        self.with(others, |one, other| one.into_iter().chain(other).min())
    }

    /// The first limit that is zero, or above the one in `most`.
    pub fn wrong(&self, most: &Self) -> Option<WrongLimit> {
        let limits = [
            ("limits.memory_bytes", 1, self.memory_bytes, most.memory_bytes),
            ("limits.processes", 1, self.processes, most.processes),
            ("limits.cpu_millis", 10, self.cpu_millis, most.cpu_millis),
            ("limits.disk_bytes", 1, self.disk_bytes, most.disk_bytes),
            ("limits.output_bytes", 1, self.output_bytes, most.output_bytes),
        ];
        limits.into_iter().find_map(|(field, least, value, most)| {
            let (value, most) = (value?, most.unwrap_or(u64::MAX));
            (value < least || value > most).then_some(WrongLimit { field, value, range: (least, most) })
        })
    }

    fn with(self, others: Self, of: impl Fn(Option<u64>, Option<u64>) -> Option<u64>) -> Self {
        Self {
            memory_bytes: of(self.memory_bytes, others.memory_bytes),
            processes: of(self.processes, others.processes),
            cpu_millis: of(self.cpu_millis, others.cpu_millis),
            disk_bytes: of(self.disk_bytes, others.disk_bytes),
            output_bytes: of(self.output_bytes, others.output_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_completed_reduced_and_checked() {
        let asked = BuildLimits { memory_bytes: Some(5), ..BuildLimits::default() };
        let most = BuildLimits { memory_bytes: Some(4), processes: Some(7), ..BuildLimits::default() };
        assert_eq!(asked.or(most), BuildLimits { memory_bytes: Some(5), ..most });
        assert_eq!(asked.least(most), most);
        let wrong = WrongLimit { field: "limits.memory_bytes", value: 5, range: (1, 4) };
        assert_eq!((asked.wrong(&most), asked.wrong(&BuildLimits::default())), (Some(wrong), None));
        let slow = BuildLimits { cpu_millis: Some(9), ..BuildLimits::default() };
        assert_eq!(slow.wrong(&most).unwrap().range, (10, u64::MAX));
        assert!(BuildLimits { disk_bytes: Some(0), ..slow }.wrong(&most).is_some());
    }
}
