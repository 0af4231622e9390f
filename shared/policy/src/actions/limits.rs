//! Limits of an action, as platform properties.
//!
//! A client limits an action by properties of its platform, whose names are compared without regard to case.
//! They do not affect where it can run, but they are part of its digest like all properties: with other limits
//! it is another action.
//!
//! | property | value, a whole number above 0 |
//! |---|---|
//! | `limit-cpu-ms` | milliseconds of processor time, user and system, of all its processes |
//! | `limit-memory-bytes` | bytes of memory of all its processes |
//! | `limit-processes` | processes and threads at a time |
//! | `limit-files` | files and folders that it may add |
//! | `limit-disk-bytes` | bytes that its folder may grow by |
//! | `limit-output-bytes` | bytes on standard output, and as many on standard error |
//!
//! A limit that only applies on executors of one hardware group, the value of their property `hwgroup`, has the name of
//! the group behind a colon: `limit-cpu-ms:g1`. It replaces the limit for all groups. There, `limit-wall-ms:g1` limits the
//! run time, which is never longer than the action's `timeout`.
//!
//! If a property is given more than once, the smallest value counts. The run time is limited by the action's `timeout`.

use std::collections::BTreeMap;

use model::{CommandLimits, TaskLimits};

use super::invalid_need::InvalidNeed;

/// Prefix of the names of all limits.
pub const PREFIX: &str = "limit-";

const WANTED: &str = "expected a whole number above 0, such as 1000";
const GROUP_WANTED: &str = "expected the name of a hardware group after the colon, such as limit-cpu-ms:g1";
const KNOWN: &str = "expected limit-cpu-ms, limit-memory-bytes, limit-processes, limit-files, limit-disk-bytes or \
                     limit-output-bytes";

/// One of the limits of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Processor time in milliseconds.
    Cpu,
    /// Time from start to end: the action's `timeout`.
    Wall,
    /// Bytes of memory of all its processes.
    Memory,
    /// Number of processes and threads at a time.
    Processes,
    /// Number of files and folders that it may add.
    Files,
    /// Bytes by which its folder may grow.
    Disk,
    /// Bytes of standard output, and as many of standard error.
    Output,
}

impl Limit {
    /// All limits in order of declaration.
    pub const ALL: [Self; 7] =
        [Self::Cpu, Self::Wall, Self::Memory, Self::Processes, Self::Files, Self::Disk, Self::Output];

    /// Its name as a field of [`TaskLimits`], and in the `limit` of an action's metadata.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu_ms",
            Self::Wall => "wall_ms",
            Self::Memory => "memory_bytes",
            Self::Processes => "processes",
            Self::Files => "files",
            Self::Disk => "disk_bytes",
            Self::Output => "output_bytes",
        }
    }

    /// Its platform property; `None` for the action's `timeout`.
    pub fn property(self) -> Option<&'static str> {
        match self {
            Self::Cpu => Some("limit-cpu-ms"),
            Self::Wall => None,
            Self::Memory => Some("limit-memory-bytes"),
            Self::Processes => Some("limit-processes"),
            Self::Files => Some("limit-files"),
            Self::Disk => Some("limit-disk-bytes"),
            Self::Output => Some("limit-output-bytes"),
        }
    }

    /// The value of this limit in `limits`, if it is set.
    pub fn of(self, limits: &TaskLimits) -> Option<u64> {
        let mut limits = *limits;
        *self.field(&mut limits)
    }

    fn field(self, limits: &mut TaskLimits) -> &mut Option<u64> {
        match self {
            Self::Cpu => &mut limits.cpu_ms,
            Self::Wall => &mut limits.wall_ms,
            Self::Memory => &mut limits.memory_bytes,
            Self::Processes => &mut limits.processes,
            Self::Files => &mut limits.files,
            Self::Disk => &mut limits.disk_bytes,
            Self::Output => &mut limits.output_bytes,
        }
    }

    /// Its unit for messages, to follow a number: `1000 ms of processor time`.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Cpu => "ms of processor time",
            Self::Wall => "ms",
            Self::Memory => "bytes of memory",
            Self::Processes => "processes",
            Self::Files => "files",
            Self::Disk => "bytes of disk",
            Self::Output => "bytes of output",
        }
    }
}

/// The property of the run time, which exists for single hardware groups only.
const WALL_PROPERTY: &str = "limit-wall-ms";
/// The property of executors that is their hardware group.
const GROUP_PROPERTY: &str = "hwgroup";

/// The platform properties for these limits, sorted by name, without the action's `timeout`.
pub fn properties(limits: &CommandLimits) -> Vec<(String, String)> {
    let has_groups = !limits.by_hwgroup.is_empty();
    let common = Limit::ALL.into_iter().filter_map(|limit| {
        // The `timeout` allows the longest time of any group.
        let name = limit.property().or(has_groups.then_some(WALL_PROPERTY))?;
        Some((name.to_owned(), limit.of(&limits.common)?.to_string()))
    });
    let of_groups = limits.by_hwgroup.iter().flat_map(|(group, limits)| {
        Limit::ALL.into_iter().filter_map(move |limit| {
            let name = limit.property().unwrap_or(WALL_PROPERTY);
            Some((format!("{name}:{group}"), limit.of(limits)?.to_string()))
        })
    });
    let mut found: Vec<_> = common.chain(of_groups).collect();
    found.sort();
    found
}

/// The limits that apply on an executor with these properties: those of its hardware group replace the others. Of several
/// groups that it offers, the smallest counts.
pub fn on_executor(limits: &CommandLimits, offered: &BTreeMap<String, Vec<String>>) -> TaskLimits {
    let groups = offered.get(GROUP_PROPERTY).into_iter().flatten();
    let of_groups = groups.filter_map(|group| limits.by_hwgroup.get(group));
    of_groups.copied().reduce(smaller).map_or(limits.common, |limits_here| limits_here.or(limits.common))
}

/// The smaller one of each limit.
fn smaller(mut one: TaskLimits, mut other: TaskLimits) -> TaskLimits {
    for limit in Limit::ALL {
        let field = limit.field(&mut one);
        *field = field.iter().chain(limit.field(&mut other).iter()).min().copied();
    }
    one
}

/// Reads the limits from the properties of a `platform`.
pub fn read(platform: &[(String, String)]) -> Result<CommandLimits, InvalidNeed> {
    let mut found = CommandLimits::default();
    for (name, value) in platform {
        take(&mut found, name, value)?;
    }
    Ok(found)
}

/// Stores a property if it is a limit, and returns whether it is.
pub(super) fn take(found: &mut CommandLimits, name: &str, value: &str) -> Result<bool, InvalidNeed> {
    let is_limit = name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX));
    if !is_limit {
        return Ok(false);
    }
    let wrong = |expected| InvalidNeed::of(name, value, expected);
    let (kind, group) = name.split_once(':').map_or((name, None), |(kind, group)| (kind, Some(group)));
    let called = |limit: &Limit| limit.property().unwrap_or(WALL_PROPERTY).eq_ignore_ascii_case(kind);
    let limit = Limit::ALL.into_iter().find(called).ok_or_else(|| wrong(KNOWN))?;
    let value: u64 = value.trim().parse().ok().filter(|value| *value > 0).ok_or_else(|| wrong(WANTED))?;
    let limits = match group {
        None => &mut found.common,
        Some("") => return Err(wrong(GROUP_WANTED)),
        Some(group) => found.by_hwgroup.entry(group.to_owned()).or_default(),
    };
    let field = limit.field(limits);
    *field = Some(field.map_or(value, |before| before.min(value)));
    Ok(true)
}

/// A limit that is above the maximum of the farm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{} = {asked} exceeds the limit of this farm: at most {most}", limit.property().unwrap_or(limit.name()))]
pub struct LimitTooHigh {
    /// The limit that is too high.
    pub limit: Limit,
    /// Value that was requested.
    pub asked: u64,
    /// The maximum that may be requested.
    pub most: u64,
}

/// Checks that no limit is above the corresponding limit of `most`.
pub fn check(limits: &CommandLimits, most: &TaskLimits) -> Result<(), LimitTooHigh> {
    for (limit, limits) in Limit::ALL.into_iter().flat_map(|limit| limits.all().map(move |all| (limit, all)))
    {
        if let (Some(asked), Some(most)) = (limit.of(limits), limit.of(most))
            && asked > most
        {
            return Err(LimitTooHigh { limit, asked, most });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn everywhere(common: TaskLimits) -> CommandLimits {
        CommandLimits { common, ..CommandLimits::default() }
    }

    #[test]
    fn a_time_limit_applies_also_where_a_group_has_a_longer_one() {
        let wall = |ms| TaskLimits { wall_ms: Some(ms), ..TaskLimits::default() };
        let limits = CommandLimits { common: wall(5), by_hwgroup: [("old".to_owned(), wall(70))].into() };
        let read = read(&properties(&limits)).unwrap();
        assert_eq!(on_executor(&read, &BTreeMap::new()).wall_ms, Some(5));
        assert!(properties(&everywhere(wall(5))).is_empty(), "the action has a timeout");
    }

    #[test]
    fn on_an_executor_the_limits_of_its_group_replace_the_others() {
        let platform = pairs(&[
            ("limit-cpu-ms", "1000"),
            ("limit-files", "3"),
            ("Limit-CPU-ms:g1", "2000"),
            ("limit-wall-ms:g1", "70"),
            ("limit-cpu-ms:g2", "500"),
            ("limit-wall-ms:g2", "80"),
        ]);
        let limits = read(&platform).unwrap();
        let on = |groups: &[&str]| {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            let found = on_executor(&limits, &[("hwgroup".to_owned(), groups)].into());
            (found.cpu_ms, found.wall_ms, found.files)
        };
        assert_eq!(on(&[]), (Some(1000), None, Some(3)));
        assert_eq!(on(&["g3"]), (Some(1000), None, Some(3)));
        assert_eq!(on(&["g1"]), (Some(2000), Some(70), Some(3)));
        assert_eq!(on(&["g1", "g2"]), (Some(500), Some(70), Some(3)), "the smallest of each");
        for bad in ["limit-cpu-ms:", "limit-colour", "limit-colour:g1"] {
            assert!(read(&pairs(&[(bad, "1")])).is_err(), "{bad}");
        }
    }

    #[test]
    fn limits_are_read_whatever_the_case_and_the_smallest_counts() {
        let platform = pairs(&[
            ("OSFamily", "linux"),
            ("Limit-CPU-ms", "2000"),
            ("limit-cpu-ms", " 1000 "),
            ("limit-files", "3"),
        ]);
        let wanted = TaskLimits { cpu_ms: Some(1000), files: Some(3), ..TaskLimits::default() };
        assert_eq!(read(&platform).unwrap(), everywhere(wanted));
    }

    #[test]
    fn what_says_no_limit_is_refused_with_what_would() {
        for value in ["0", "-1", "1.5", "", "many", "1e9", "18446744073709551616"] {
            let invalid = read(&pairs(&[("limit-memory-bytes", value)])).unwrap_err();
            assert_eq!((invalid.property.as_str(), invalid.value.as_str()), ("limit-memory-bytes", value));
            assert!(invalid.to_string().contains("above 0"), "{invalid}");
        }
        let invalid = read(&pairs(&[("limit-cpu", "3")])).unwrap_err();
        assert!(invalid.to_string().contains("limit-cpu-ms"), "{invalid}");
    }

    #[test]
    fn more_than_the_farm_allows_is_refused_by_name() {
        let most = TaskLimits { cpu_ms: Some(10), disk_bytes: Some(5), ..TaskLimits::default() };
        let asked =
            |cpu_ms| TaskLimits { cpu_ms: Some(cpu_ms), files: Some(u64::MAX), ..TaskLimits::default() };
        assert_eq!(check(&everywhere(asked(10)), &most), Ok(()));
        let error = check(&everywhere(asked(11)), &most).unwrap_err();
        let in_a_group = CommandLimits { by_hwgroup: [("g".to_owned(), asked(11))].into(), common: asked(1) };
        assert_eq!(check(&in_a_group, &most), Err(error));
        assert_eq!(error, LimitTooHigh { limit: Limit::Cpu, asked: 11, most: 10 });
        let text = error.to_string();
        assert!(text.contains("limit-cpu-ms") && text.contains("11") && text.contains("10"), "{text}");
    }

    #[test]
    fn each_limit_has_the_name_of_its_field() {
        let all = TaskLimits {
            cpu_ms: Some(1),
            wall_ms: Some(2),
            memory_bytes: Some(3),
            processes: Some(4),
            files: Some(5),
            disk_bytes: Some(6),
            output_bytes: Some(7),
        };
        let shown = format!("{all:?}");
        for limit in Limit::ALL {
            let field = format!("{}: Some({})", limit.name(), limit.of(&all).unwrap());
            assert!(shown.contains(&field), "{shown}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            values in prop::array::uniform6(prop::option::of(1..u64::MAX)),
            groups in prop::collection::btree_map("[a-z]{1,5}", prop::array::uniform2(prop::option::of(1..u64::MAX)), 0..3),
        ) {
            let [cpu_ms, memory_bytes, processes, files, disk_bytes, output_bytes] = values;
            let common =
                TaskLimits { cpu_ms, wall_ms: None, memory_bytes, processes, files, disk_bytes, output_bytes };
            let of_group = |[cpu_ms, wall_ms]: [Option<u64>; 2]| TaskLimits { cpu_ms, wall_ms, ..TaskLimits::default() };
            let by_hwgroup = groups.into_iter().map(|(group, limits)| (group, of_group(limits)));
            // A group without limits cannot be told from one that is not named.
            let by_hwgroup = by_hwgroup.filter(|(_, limits)| !limits.is_empty()).collect();
            let limits = CommandLimits { common, by_hwgroup };
            prop_assert_eq!(read(&properties(&limits)).unwrap(), limits);
        }
    }
}
