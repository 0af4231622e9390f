//! Limits of a task that differ between hardware groups.

use std::collections::BTreeMap;

use super::{fault::GROUP_MAX, location::FieldFault};
use crate::{JobFault, TaskLimits};

/// The platform property that names the hardware groups which a task may run on.
const PROPERTY: &str = "hwgroup";

/// Limits of a command: known at once, or by the hardware group of the executor that runs it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandLimits {
    /// Limits in all groups that are not in `by_hwgroup`.
    pub common: TaskLimits,
    /// All limits in single groups; empty if the group is known.
    pub by_hwgroup: BTreeMap<String, TaskLimits>,
}

impl CommandLimits {
    /// Resolves the limits of a task that runs on executors of `platform`. If that names exactly one group,
    /// only its limits count.
    pub(super) fn new(
        common: TaskLimits,
        by_hwgroup: &BTreeMap<String, TaskLimits>,
        platform: &BTreeMap<String, String>,
    ) -> Result<Self, FieldFault> {
        let asked: Option<Vec<&str>> =
            platform.get(PROPERTY).map(|groups| groups.split('|').map(str::trim).collect());
        for group in by_hwgroup.keys() {
            let is_plain = group.trim() == group && !group.is_empty() && !group.contains(['|', '\0']);
            if !is_plain || group.chars().count() > GROUP_MAX {
                let shown = group.chars().take(GROUP_MAX).collect();
                return Err(FieldFault::new("limits_by_hwgroup", JobFault::BadGroup(shown)));
            }
            let field = format!("limits_by_hwgroup.{group}");
            if asked.as_ref().is_some_and(|asked| !asked.contains(&group.as_str())) {
                return Err(FieldFault(field, JobFault::OtherGroup(group.clone())));
            }
        }
        let in_group = |limits: &TaskLimits| limits.or(common);
        if let Some([only]) = asked.as_deref() {
            let common = by_hwgroup.get(*only).map_or(common, in_group);
            return Ok(Self { common, by_hwgroup: BTreeMap::new() });
        }
        let all = by_hwgroup.iter().map(|(group, limits)| (group.clone(), in_group(limits)));
        Ok(Self { common, by_hwgroup: all.collect() })
    }

    /// Limits of `common` and of each group.
    pub fn all(&self) -> impl Iterator<Item = &TaskLimits> {
        std::iter::once(&self.common).chain(self.by_hwgroup.values())
    }

    /// The longest run time that any group allows, in milliseconds; absent if one of them does not limit it.
    pub fn longest_wall_ms(&self) -> Option<u64> {
        self.all().map(|limits| limits.wall_ms).reduce(|a, b| Some(a?.max(b?))).flatten()
    }

    /// These limits, each changed by `change`.
    #[must_use]
    pub fn map(&self, change: impl Fn(TaskLimits) -> TaskLimits) -> Self {
        let groups = self.by_hwgroup.iter().map(|(group, limits)| (group.clone(), change(*limits)));
        Self { common: change(self.common), by_hwgroup: groups.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(cpu_ms: u64) -> TaskLimits {
        TaskLimits { cpu_ms: Some(cpu_ms), ..TaskLimits::default() }
    }

    fn resolve(hwgroup: Option<&str>, groups: &[(&str, u64)]) -> Result<CommandLimits, String> {
        let common = TaskLimits { wall_ms: Some(9), ..limits(1) };
        let groups = groups.iter().map(|(group, cpu_ms)| ((*group).to_owned(), limits(*cpu_ms))).collect();
        let platform = hwgroup.map(|value| (PROPERTY.to_owned(), value.to_owned())).into_iter().collect();
        CommandLimits::new(common, &groups, &platform)
            .map_err(|FieldFault(field, fault)| format!("{field}: {fault}"))
    }

    #[test]
    fn of_one_group_the_limits_are_known_and_of_several_they_are_kept_apart() {
        let one = resolve(Some("g2"), &[("g2", 20)]).unwrap();
        assert_eq!((one.common.cpu_ms, one.common.wall_ms), (Some(20), Some(9)));
        assert!(one.by_hwgroup.is_empty());
        for asked in [None, Some("g1|g2"), Some("g1 | g2 | g3")] {
            let several = resolve(asked, &[("g1", 10), ("g2", 20)]).unwrap();
            assert_eq!(several.common.cpu_ms, Some(1));
            let of_groups = several.by_hwgroup.values().map(|all| (all.cpu_ms, all.wall_ms));
            assert_eq!(of_groups.collect::<Vec<_>>(), [(Some(10), Some(9)), (Some(20), Some(9))]);
        }
        assert!(resolve(Some("g1|g2"), &[]).unwrap().by_hwgroup.is_empty());
    }

    #[test]
    fn a_group_that_the_task_does_not_ask_for_is_an_error() {
        let error = resolve(Some("g1|g2"), &[("g3", 10)]).unwrap_err();
        assert!(error.starts_with("limits_by_hwgroup.g3: ") && error.contains("platform"), "{error}");
        for bad in ["", "a|b", "a ", "a\0", &"x".repeat(GROUP_MAX + 1)] {
            assert!(resolve(None, &[(bad, 10)]).unwrap_err().contains("not a hardware group"), "{bad}");
        }
    }

    #[test]
    fn the_longest_time_is_that_of_the_most_generous_group() {
        let wall = |wall_ms| TaskLimits { wall_ms, ..TaskLimits::default() };
        let of = |common, group| CommandLimits {
            common: wall(common),
            by_hwgroup: [("g".to_owned(), wall(group))].into(),
        };
        assert_eq!(of(Some(5), Some(7)).longest_wall_ms(), Some(7));
        assert_eq!(of(Some(5), None).longest_wall_ms(), None);
        assert_eq!(CommandLimits::default().longest_wall_ms(), None);
        let doubled = of(Some(5), Some(7)).map(|limits| wall(limits.wall_ms.map(|ms| ms * 2)));
        assert_eq!(doubled, of(Some(10), Some(14)));
    }
}
