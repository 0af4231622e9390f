//! Total and available memory of the machine, and of each control group of this process.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use sandbox::{Version, control_groups};

use crate::{Kind, Reading, Sensor, SensorInput};

/// A limit from this value on means no limit: version 1 reports `9223372036854771712` for that.
const NO_LIMIT: u64 = 1 << 60;

/// Memory of the machine or of a control group, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryState {
    /// The owner, for messages.
    pub owner: String,
    pub all: u64,
    /// Memory available without swapping or killing.
    pub left: u64,
}

impl MemoryState {
    /// Part that is available, from 0 to 1.
    pub fn left_share(&self) -> f64 {
        self.left as f64 / self.all.max(1) as f64
    }
}

/// The state of which the smallest part is available.
pub fn scarcest(states: Vec<MemoryState>) -> Option<MemoryState> {
    states.into_iter().min_by(|a, b| a.left_share().total_cmp(&b.left_share()))
}

/// Memory available to actions in bytes: that of the machine, or less if control groups limit it. `proc` is
/// the path of `/proc`.
pub fn machine_memory(proc: &Path) -> io::Result<u64> {
    let least = memory_states(proc).into_iter().map(|state| state.all).min();
    least.ok_or_else(|| io::Error::other(format!("{} has no MemTotal", proc.join("meminfo").display())))
}

/// Memory of the machine, and of each control group of this process that limits it. `proc` is the path of `/proc`.
pub fn memory_states(proc: &Path) -> Vec<MemoryState> {
    // A system without control groups has only the machine's memory.
    let read = |name: &str| fs::read_to_string(proc.join(name)).unwrap_or_default();
    let mut states: Vec<MemoryState> = of_machine(&read("meminfo")).into_iter().collect();
    if let Some((version, groups)) = control_groups("memory", &read("self/cgroup"), &read("self/mountinfo")) {
        states.extend(groups.iter().filter_map(|group| of_group(version, group)));
    }
    states
}

fn of_machine(meminfo: &str) -> Option<MemoryState> {
    let bytes = |name: &str| {
        let kib = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(kib.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.saturating_mul(1024))
    };
    Some(MemoryState {
        owner: "the machine".to_owned(),
        all: bytes("MemTotal")?,
        left: bytes("MemAvailable")?,
    })
}

/// The memory of a control group; `None` if it has no limit.
fn of_group(version: Version, group: &Path) -> Option<MemoryState> {
    let (limit, used, files) = match version {
        Version::One => (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            ["total_inactive_file", "total_active_file"].as_slice(),
        ),
        Version::Two => {
            ("memory.max", "memory.current", ["inactive_file", "active_file", "slab_reclaimable"].as_slice())
        }
    };
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let all = number(limit).filter(|limit| *limit < NO_LIMIT)?;
    // Without the statistics, nothing counts as reclaimable.
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let reclaimable: u64 = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| files.contains(name))
        .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
        .sum();
    let left = all.saturating_sub(number(used)?.saturating_sub(reclaimable));
    Some(MemoryState { owner: format!("the control group {}", group.display()), all, left })
}

pub(crate) struct Memory {
    proc: PathBuf,
    left_percent: u8,
}

impl Memory {
    pub(crate) fn new(proc: &Path, left_percent: u8) -> Self {
        Self { proc: proc.to_owned(), left_percent }
    }
}

impl Sensor for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn kind(&self) -> Kind {
        Kind::Congestion
    }

    fn read(&mut self, _: SensorInput) -> Reading {
        let wanted = f64::from(self.left_percent);
        match scarcest(memory_states(&self.proc)).map(|state| (state.left_share() * 100.0, state)) {
            Some((left, state)) if left < wanted => Reading::red(format!(
                "{left:.1} % of the memory of {} is free, below the minimum of {wanted} % (memory_left_percent)",
                state.owner
            )),
            Some(_) | None => Reading::green(),
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::Signal;
    use tempfile::TempDir;

    use super::*;

    const GB: u64 = 1 << 30;

    /// A simulated machine with 16 GB of memory and `available` bytes free, and this process
    /// in the group `/jobs/forebay`.
    struct Machine(TempDir);

    impl Machine {
        fn new(kind: &str, available: u64) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            let kib = available / 1024;
            let meminfo = format!("MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   {kib} kB\n");
            machine.write("proc/meminfo", &meminfo);
            let (own, options) = match kind {
                "cgroup" => ("4:memory:/jobs/forebay\n", "rw,memory"),
                _ => ("0::/jobs/forebay\n", "rw"),
            };
            machine.write("proc/self/cgroup", own);
            let mount = machine.0.path().join("groups");
            let line = format!("31 23 0:28 / {} rw - {kind} {kind} {options}\n", mount.display());
            machine.write("proc/self/mountinfo", &line);
            machine
        }

        fn write(&self, path: &str, content: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        fn proc(&self) -> PathBuf {
            self.0.path().join("proc")
        }

        fn read(&self) -> Reading {
            Memory::new(&self.proc(), 5).read(SensorInput::default())
        }
    }

    #[test]
    fn what_the_machine_has_available_counts() {
        assert_eq!(Machine::new("cgroup2", GB).read(), Reading::green());
        let short = Machine::new("cgroup2", GB / 2).read();
        assert_eq!(
            short.why,
            "3.1 % of the memory of the machine is free, below the minimum of 5 % (memory_left_percent)"
        );
        assert_eq!(machine_memory(&Machine::new("cgroup2", GB).proc()).unwrap(), 16 * GB);
        assert!(machine_memory(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn a_limit_of_version_two_counts_without_what_can_be_reclaimed() {
        let machine = Machine::new("cgroup2", 8 * GB);
        machine.write("groups/jobs/forebay/memory.max", "max\n");
        machine.write("groups/jobs/memory.max", &format!("{}\n", 2 * GB));
        machine.write("groups/jobs/memory.current", &format!("{}\n", 2 * GB));
        let stat = |file: u64| format!("anon 5\ninactive_file {file}\nactive_file {file}\nfile 77\n");
        machine.write("groups/jobs/memory.stat", &stat(GB / 2));
        assert_eq!(machine.read(), Reading::green());
        assert_eq!(machine_memory(&machine.proc()).unwrap(), 2 * GB);
        machine.write("groups/jobs/memory.stat", &stat(GB / 100));
        let short = machine.read();
        assert_eq!(short.signal, Signal::Red);
        assert!(short.why.contains("groups/jobs is free"), "{}", short.why);
    }

    #[test]
    fn a_limit_of_version_one_counts_without_what_can_be_reclaimed() {
        let machine = Machine::new("cgroup", 8 * GB);
        let set = |name: &str, bytes: u64| {
            machine.write(&format!("groups/jobs/forebay/memory.{name}_in_bytes"), &format!("{bytes}\n"));
        };
        set("limit", 9_223_372_036_854_771_712);
        set("usage", 4 * GB);
        assert_eq!(machine_memory(&machine.proc()).unwrap(), 16 * GB);
        set("limit", 4 * GB);
        let stat = format!("inactive_file 1\ntotal_inactive_file {GB}\n");
        machine.write("groups/jobs/forebay/memory.stat", &stat);
        assert_eq!(machine.read(), Reading::green());
        machine.write("groups/jobs/forebay/memory.stat", "total_inactive_file 4096\n");
        assert_eq!(machine.read().signal, Signal::Red);
    }
}
