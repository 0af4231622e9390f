//! Control groups of this process that limit its processors.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sandbox::{Version, control_groups};

/// The groups of this process, and those around them, that limit processor time. `proc` is the path of `/proc`.
pub fn limiting_processors(proc: &Path) -> Vec<PathBuf> {
    // A system without control groups has no limits.
    let read = |name: &str| fs::read_to_string(proc.join(name)).unwrap_or_default();
    let found = control_groups("cpu", &read("self/cgroup"), &read("self/mountinfo"));
    let Some((version, groups)) = found else { return Vec::new() };
    groups.into_iter().filter(|group| is_limited(version, group)).collect()
}

fn is_limited(version: Version, group: &Path) -> bool {
    let read = |name: &str| fs::read_to_string(group.join(name)).unwrap_or_default();
    match version {
        Version::One => read("cpu.cfs_quota_us").trim().parse::<i64>().is_ok_and(|quota| quota > 0),
        // The format is `QUOTA PERIOD`, or `max PERIOD`.
        Version::Two => {
            read("cpu.max").split_whitespace().next().is_some_and(|quota| quota.parse::<u64>().is_ok())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_with_a_limit_are_found_in_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let mount = |kind: &str, options: &str| {
            format!("31 23 0:28 / {} rw - {kind} {kind} {options}\n", root.path().join("groups").display())
        };
        let group = root.path().join("groups/jobs");
        let found = || limiting_processors(&root.path().join("proc"));
        assert!(found().is_empty());
        write("proc/self/cgroup", "0::/jobs/one\n");
        write("proc/self/mountinfo", &mount("cgroup2", "rw"));
        write("groups/jobs/one/cpu.max", "max 100000\n");
        write("groups/jobs/cpu.max", "max 100000\n");
        assert!(found().is_empty());
        write("groups/jobs/cpu.max", "150000 100000\n");
        assert_eq!(found(), std::slice::from_ref(&group));
        write("proc/self/cgroup", "3:cpu,cpuacct:/jobs/one\n");
        write("proc/self/mountinfo", &mount("cgroup", "rw,cpu,cpuacct"));
        write("groups/jobs/cpu.cfs_quota_us", "-1\n");
        assert!(found().is_empty());
        write("groups/jobs/cpu.cfs_quota_us", "150000\n");
        assert_eq!(found(), [group]);
    }
}
