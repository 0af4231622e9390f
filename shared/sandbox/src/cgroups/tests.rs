//! Where groups are created, and the values read from them.

use super::*;

const OWN: &str = "8:pids:/\n4:memory,cpu:/some/service\n0::/\n";
const MOUNTS: &str = "24 1 0:20 / /sys/fs/cgroup/pids rw shared:1 - cgroup cgroup rw,pids\n\
    25 1 0:21 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
    26 1 0:22 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

#[test]
fn only_what_is_ours_is_used() {
    let at = |controller, any| folder(OWN, MOUNTS, controller, any);
    assert_eq!(at(Some("pids"), false), Some("/sys/fs/cgroup/pids".into()));
    assert_eq!(at(None, false), Some("/sys/fs/cgroup/unified".into()));
    assert_eq!(at(Some("memory"), false), None);
    assert_eq!(at(Some("memory"), true), Some("/sys/fs/cgroup/memory/some/service".into()));
    assert_eq!(at(Some("blkio"), true), None);
    // A container sees its own group mounted as the root.
    let inside = MOUNTS.replace("0:21 / ", "0:21 /some/service ");
    assert_eq!(folder(OWN, &inside, Some("memory"), false), Some("/sys/fs/cgroup/memory".into()));
    assert_eq!(Cgroups::find(&Parent::Off, OWN, MOUNTS), Cgroups::default());
    assert_eq!(Cgroups::find(&Parent::Own, "", ""), Cgroups::default());
}

#[test]
fn the_groups_that_count_our_memory_are_our_own_and_those_above() {
    let groups = ["/some/service", "/some", ""].map(|group| format!("/sys/fs/cgroup/memory{group}").into());
    assert_eq!(control_groups("memory", OWN, MOUNTS), Some((Version::One, groups.to_vec())));
    let unified = MOUNTS.replace("rw,memory", "rw,cpuset");
    assert_eq!(
        control_groups("memory", OWN, &unified),
        Some((Version::Two, vec!["/sys/fs/cgroup/unified".into()]))
    );
    assert_eq!(control_groups("memory", "", MOUNTS), None);
}

#[test]
fn a_group_of_version_two_limits_and_tells() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
    fs::write(root.path().join("cgroup.subtree_control"), "memory pids\n").unwrap();
    let cgroups = Cgroups::detect(&Parent::At(root.path().to_owned()));
    assert!(cgroups.limits_memory() && cgroups.limits_processes());
    let folder = root.path().join("forebay-one");
    let file = |name: &str| folder.join(name);
    fs::create_dir(&folder).unwrap();
    fs::write(file("memory.events"), "low 0\noom 3\noom_kill 2\n").unwrap();
    fs::write(file("memory.peak"), "4096\n").unwrap();
    let group = cgroups.group("one", Some(77), &Cores::default(), false);
    assert_eq!(group.join_files(), [file("cgroup.procs")]);
    assert_eq!(fs::read_to_string(file("pids.max")).unwrap(), "77");
    group.begin(Some(1 << 20), None).unwrap();
    assert_eq!(fs::read_to_string(file("memory.max")).unwrap(), "1048576");
    assert_eq!(fs::read_to_string(file("memory.swap.max")).unwrap(), "0");
    fs::write(file("memory.peak"), "8192\n").unwrap();
    assert_eq!(group.end(), (Some(8192), false));
    fs::write(file("memory.events"), "oom_kill 3\n").unwrap();
    assert!(group.end().1);
    group.begin(None, None).unwrap();
    assert_eq!(fs::read_to_string(file("memory.max")).unwrap(), "max");
    assert!(!group.end().1);
    // There are three processes: the slot's own.
    fs::write(file("pids.current"), "3\n").unwrap();
    fs::write(file("pids.events"), "max 5\n").unwrap();
    group.begin(None, Some(10)).unwrap();
    assert_eq!(fs::read_to_string(file("pids.max")).unwrap(), "13");
    assert!(!group.is_over_processes());
    fs::write(file("pids.events"), "max 6\n").unwrap();
    assert!(group.is_over_processes());
    group.begin(None, None).unwrap();
    assert_eq!(fs::read_to_string(file("pids.max")).unwrap(), "77");
    assert!(!group.is_over_processes());
    // A limit that could not be set is an error, and is set again before the next run, with or without a limit.
    fs::remove_file(file("memory.max")).unwrap();
    fs::create_dir(file("memory.max")).unwrap();
    assert!(group.begin(Some(5), None).unwrap_err().to_string().contains("memory.max"));
    assert!(group.begin(None, None).is_err());
    fs::remove_dir(file("memory.max")).unwrap();
    group.begin(None, None).unwrap();
    assert_eq!(fs::read_to_string(file("memory.max")).unwrap(), "max");
    assert_eq!(group.cpu(), None);
    fs::write(file("cpu.stat"), "usage_usec 1500\nuser_usec 1\n").unwrap();
    assert_eq!(group.cpu(), Some(Duration::from_micros(1500)));
}

#[test]
fn processor_time_is_counted_where_that_changes_nothing_else() {
    let own = "7:cpuacct:/\n6:cpu:/\n";
    let mount = |options| format!("27 1 0:23 / /sys/x/{options} rw - cgroup cgroup rw,{options}\n");
    let at = |controller, mounts: &str| folder(own, mounts, Some(controller), true);
    let apart = mount("cpu") + &mount("cpuacct");
    assert_ne!(at("cpu", &apart), at("cpuacct", &apart));
    let together = mount("cpu,cpuacct");
    assert_eq!(at("cpu", &together), at("cpuacct", &together));
}

#[test]
fn a_group_of_version_one_limits_and_tells() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
    let cgroups = Cgroups::detect(&Parent::At(root.path().to_owned()));
    assert!(cgroups.limits_memory() && !cgroups.limits_processes());
    let folder = root.path().join("forebay-one");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n").unwrap();
    fs::write(folder.join("memory.max_usage_in_bytes"), "4096\n").unwrap();
    let group = cgroups.group("one", None, &Cores::default(), false);
    group.begin(Some(5000), None).unwrap();
    for file in ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"] {
        assert_eq!(fs::read_to_string(folder.join(file)).unwrap(), "5000");
    }
    fs::write(folder.join("memory.oom_control"), "oom_kill 1\n").unwrap();
    assert!(group.end().1);
}

#[test]
fn a_group_binds_to_cores_in_both_versions() {
    let cores = |memory_nodes: &[u16]| Cores { processors: vec![2, 5], memory_nodes: memory_nodes.to_vec() };
    for (version, all_memory) in [(Version::One, "0-1\n"), (Version::Two, "\n")] {
        let root = tempfile::tempdir().unwrap();
        let parent = Parent::At(root.path().to_owned());
        match version {
            Version::One => fs::write(root.path().join("cgroup.procs"), "").unwrap(),
            Version::Two => {
                fs::write(root.path().join("cgroup.controllers"), "cpuset\n").unwrap();
                fs::write(root.path().join("cgroup.subtree_control"), "cpuset\n").unwrap();
            }
        }
        fs::write(root.path().join("cpuset.mems"), "0-1\n").unwrap();
        assert!(!Cgroups::detect(&parent).binds_cores(), "it was not asked for");
        let cgroups = Cgroups::default().with_cpuset(&parent);
        assert!(cgroups.binds_cores());
        let folder = root.path().join("forebay-one");
        fs::create_dir(&folder).unwrap();
        let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap();
        let group = cgroups.group("one", None, &cores(&[1]), false);
        assert_eq!(group.join_files(), [folder.join("cgroup.procs")]);
        assert_eq!([read("cpuset.cpus"), read("cpuset.mems")], ["2,5\n", "1\n"]);
        let _group = cgroups.group("one", None, &cores(&[]), false);
        assert_eq!(read("cpuset.mems").trim(), all_memory.trim());
        assert!(cgroups.group("one", None, &Cores::default(), false).join_files().is_empty());
        // Without memory no process could enter a group of version 1.
        if version == Version::One {
            fs::remove_file(root.path().join("cpuset.mems")).unwrap();
            assert!(cgroups.group("one", None, &cores(&[]), false).join_files().is_empty());
        }
    }
}

#[test]
fn a_limit_that_no_kernel_takes_is_none() {
    let root = tempfile::tempdir().unwrap();
    let pids = Pids::new(root.path().to_owned(), None).unwrap();
    let written = |limit| {
        pids.begin(Some(limit)).unwrap();
        fs::read_to_string(root.path().join("pids.max")).unwrap()
    };
    assert_eq!([written(4_194_303), written(4_194_304), written(u64::MAX)], ["4194303", "max", "max"]);
}

#[test]
fn what_dead_executors_left_is_swept_away_and_no_more() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("cgroup.controllers"), "memory\n").unwrap();
    fs::write(root.path().join("cgroup.subtree_control"), "memory\n").unwrap();
    let cgroups = Cgroups::detect(&Parent::At(root.path().to_owned()));
    for name in ["forebay-left", "forebay-left-too", "forebay-used/inner", "forebay-self", "other"] {
        fs::create_dir_all(root.path().join(name)).unwrap();
    }
    // A real group is empty although there are files in it.
    let group = cgroups.group("held", None, &Cores::default(), false);
    fs::remove_file(root.path().join("forebay-held/memory.max")).unwrap();
    fs::remove_file(root.path().join("forebay-held/memory.swap.max")).unwrap();
    let there = || {
        let names = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.retain(|name| !name.starts_with("cgroup."));
        names.sort();
        names
    };
    cgroups.sweep();
    assert_eq!(there(), ["forebay-held", "forebay-self", "forebay-used", "other"]);
    drop(group);
    assert_eq!(there(), ["forebay-self", "forebay-used", "other"]);
}
