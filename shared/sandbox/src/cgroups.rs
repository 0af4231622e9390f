//! Control groups, where there are any to use: limits on memory and processes, the peak of memory, and processor time.
//!
//! A group may be put only below one that is ours: the root that this process sees (of a machine, or of a
//! container), or one that the settings name. A service's own group belongs to who started the service.

mod held;
mod memory;
mod pids;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use held::Held;
use memory::Memory;
use pids::Pids;

use crate::error::SandboxError;

/// How the name of every group of ours begins.
const OURS: &str = "forebay-";
/// The group of an executor itself, and those that are made to see whether any can be: they come and go without a lock.
const UNHELD: [&str; 2] = ["forebay-self", "forebay-trial-"];

/// Where to put groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Parent {
    /// Below the root that this process sees, where it is in that itself.
    #[default]
    Auto,
    /// Below the group that this process is in, which was delegated to it (systemd's `Delegate=yes`).
    Own,
    /// Below this folder, of either version.
    At(PathBuf),
    /// Nowhere.
    Off,
}

/// The folders below which groups may be put.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cgroups {
    memory: Option<(Version, PathBuf)>,
    pids: Option<(Version, PathBuf)>,
    /// Of version 2 every group tells processor time; of version 1 there is a hierarchy for that.
    cpu: Option<(Version, PathBuf)>,
}

/// Which interface a group has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy for each controller.
    One,
    /// One for all.
    Two,
}

impl Cgroups {
    /// Looks for what can be used. Never fails: what cannot be used is not there.
    pub fn detect(parent: &Parent) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (own, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
        Self::find(parent, &own, &mounts)
    }

    /// Whether the memory of commands can be limited.
    pub fn limits_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether the processes of a command can be limited.
    pub fn limits_processes(&self) -> bool {
        self.pids.is_some()
    }

    fn find(parent: &Parent, own: &str, mounts: &str) -> Self {
        let usable = |controller: &str| match parent {
            Parent::Off => None,
            Parent::At(path) if path.join("cgroup.controllers").exists() => {
                delegate(path, controller).then(|| (Version::Two, path.clone()))
            }
            Parent::At(path) => is_v1(path, controller).then(|| (Version::One, path.clone())),
            Parent::Auto | Parent::Own => {
                let any = *parent == Parent::Own;
                let one = folder(own, mounts, Some(controller), any).map(|path| (Version::One, path));
                let two = || folder(own, mounts, None, any).map(|path| (Version::Two, path));
                one.filter(|(_, path)| is_v1(path, controller))
                    .or_else(|| two().filter(|(_, path)| delegate(path, controller)))
            }
        };
        let (memory, pids) = (usable("memory"), usable("pids"));
        // Where that hierarchy also shares out processors, a group of ours would change whose they are.
        let alone = folder(own, mounts, Some("cpu"), true) != folder(own, mounts, Some("cpuacct"), true);
        let cpu = memory.iter().chain(&pids).find(|(version, _)| *version == Version::Two).cloned();
        let cpu = cpu.or_else(|| usable("cpuacct").filter(|(version, _)| alone && *version == Version::One));
        Self { memory, pids, cpu }
    }

    /// A group of this name, with what there is; what fails is told and left out.
    pub(crate) fn group(&self, name: &str, processes_max: Option<u64>) -> Group {
        let mut held: Vec<Held> = Vec::new();
        let mut make = |place: &Option<(Version, PathBuf)>| {
            let (version, parent) = place.as_ref()?;
            let folder = parent.join(format!("{OURS}{name}"));
            if held.iter().all(|held| held.folder != folder) {
                let made = Held::at(&folder).map_err(|source| SandboxError::file("making", &folder, source));
                held.push(usable(made)?);
            }
            Some((*version, folder))
        };
        let memory = make(&self.memory).and_then(|(version, folder)| usable(Memory::new(version, folder)));
        let pids = make(&self.pids).and_then(|(_, folder)| usable(Pids::new(folder, processes_max)));
        let cpu = make(&self.cpu);
        Group { memory, pids, cpu, held }
    }

    /// Removes the groups that were left by executors which are no more. Those of others that live are not touched.
    pub fn sweep(&self) {
        let parents: HashSet<&Path> = [&self.memory, &self.pids, &self.cpu]
            .into_iter()
            .flatten()
            .map(|(_, path)| path.as_path())
            .collect();
        for entry in parents.into_iter().filter_map(|parent| fs::read_dir(parent).ok()).flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let ours = name.starts_with(OURS) && !UNHELD.iter().any(|unheld| name.starts_with(unheld));
            if ours && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                Held::sweep(&entry.path());
            }
        }
    }
}

/// What a slot does without is told.
fn usable<T>(part: Result<T, SandboxError>) -> Option<T> {
    part.inspect_err(|error| {
        let source = std::error::Error::source(error).map(ToString::to_string);
        tracing::warn!(%error, source, "no control group for a slot");
    })
    .ok()
}

/// The group that counts the memory of a process, and those above it, as far as they can be seen: the limit of each of
/// them holds. `own` and `mounts` are the contents of its `cgroup` and `mountinfo` in `/proc`.
pub fn memory_groups(own: &str, mounts: &str) -> Option<(Version, Vec<PathBuf>)> {
    let at = |controller| {
        let (point, below) = place(own, mounts, controller)?;
        let groups = below.ancestors().map(|path| point.join(path).components().collect());
        Some(groups.collect::<Vec<PathBuf>>())
    };
    let one = at(Some("memory")).map(|groups| (Version::One, groups));
    one.or_else(|| at(None).map(|groups| (Version::Two, groups)))
}

/// The folder of this process's group in a hierarchy: of this controller, or of version 2. Unless `any` group
/// will do, only where it is the root that we see.
fn folder(own: &str, mounts: &str, controller: Option<&str>, any: bool) -> Option<PathBuf> {
    let (point, below) = place(own, mounts, controller)?;
    (any || below.as_os_str().is_empty()).then(|| point.join(below))
}

/// Where a hierarchy is mounted, and this process's group below that.
fn place<'a>(own: &'a str, mounts: &'a str, controller: Option<&str>) -> Option<(&'a Path, &'a Path)> {
    // `4:memory,cpu:/path`, `0::/path`.
    let own = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let ours = match controller {
            Some(controller) => controllers.split(',').any(|one| one == controller),
            None => controllers.is_empty(),
        };
        ours.then_some(path)
    })?;
    // `ID PARENT DEVICE ROOT MOUNTPOINT OPTIONS... - TYPE SOURCE OPTIONS`
    let (root, point) = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let (mut before, mut after) = (before.split(' ').skip(3), after.split(' '));
        let (kind, options) = (after.next()?, after.nth(1)?);
        let ours = match controller {
            Some(controller) => kind == "cgroup" && options.split(',').any(|one| one == controller),
            None => kind == "cgroup2",
        };
        ours.then_some((before.next()?, before.next()?))
    })?;
    let below = Path::new(own).strip_prefix(root).ok()?;
    Some((Path::new(point), below))
}

fn is_v1(folder: &Path, controller: &str) -> bool {
    let has = match controller {
        "memory" => {
            folder.join("memory.limit_in_bytes").exists() || folder.join("memory.usage_in_bytes").exists()
        }
        // The root has no limit of its own, and no file that would tell the controller.
        _ => folder.join("cgroup.procs").exists() && !folder.join("memory.usage_in_bytes").exists(),
    };
    has && can_make(folder)
}

/// Whether a group can be made there, which is tried: mode bits say little about it.
fn can_make(folder: &Path) -> bool {
    let trial = folder.join(format!("forebay-trial-{}", std::process::id()));
    fs::create_dir(&trial).is_ok() && fs::remove_dir(&trial).is_ok()
}

/// Hands a controller of version 2 on to the groups below.
fn delegate(folder: &Path, controller: &str) -> bool {
    let has = |file: &str| {
        let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
        text.split_ascii_whitespace().any(|one| one == controller)
    };
    let control = folder.join("cgroup.subtree_control");
    let hand_on = || fs::write(&control, format!("+{controller}")).is_ok();
    if !has("cgroup.controllers") || !can_make(folder) {
        return false;
    }
    if has("cgroup.subtree_control") || hand_on() {
        return true;
    }
    // A group that hands on may hold no process itself, and this one may hold us.
    let leaf = folder.join("forebay-self");
    let moved = fs::create_dir_all(&leaf).is_ok() && fs::write(leaf.join("cgroup.procs"), "0").is_ok();
    moved && hand_on()
}

/// The control groups of one slot, which its processes enter at their start.
#[derive(Debug, Default)]
pub(crate) struct Group {
    memory: Option<Memory>,
    pids: Option<Pids>,
    cpu: Option<(Version, PathBuf)>,
    held: Vec<Held>,
}

impl Group {
    /// The files through which a process enters.
    pub(crate) fn join_files(&self) -> Vec<PathBuf> {
        self.held.iter().map(|held| held.folder.join("cgroup.procs")).collect()
    }

    /// Whether the number of processes is always limited.
    pub(crate) fn limits_processes(&self) -> bool {
        self.pids.as_ref().is_some_and(Pids::limits)
    }

    /// Whether memory can be limited.
    pub(crate) fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether the number of processes can be limited.
    pub(crate) fn has_processes(&self) -> bool {
        self.pids.is_some()
    }

    /// Before a run: sets its limits and forgets the last peak. `processes` are counted from those that are there now.
    pub(crate) fn begin(
        &self,
        memory_bytes_max: Option<u64>,
        processes: Option<u64>,
    ) -> Result<(), SandboxError> {
        self.memory.as_ref().map_or(Ok(()), |memory| memory.begin(memory_bytes_max))?;
        self.pids.as_ref().map_or(Ok(()), |pids| pids.begin(processes))
    }

    /// Whether the run was refused a process or thread for its limit.
    pub(crate) fn is_over_processes(&self) -> bool {
        self.pids.as_ref().is_some_and(Pids::is_over)
    }

    /// User and system time of all that ever was in the group, the slot's own process among it.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        match self.cpu.as_ref()? {
            (Version::One, folder) => number_in(&folder.join("cpuacct.usage"), "").map(Duration::from_nanos),
            (Version::Two, folder) => {
                number_in(&folder.join("cpu.stat"), "usage_usec ").map(Duration::from_micros)
            }
        }
    }

    /// After a run: its peak of memory, if it is known, and whether something was killed for want of it.
    pub(crate) fn end(&self) -> (Option<u64>, bool) {
        self.memory.as_ref().map_or((None, false), Memory::end)
    }
}

/// The number behind `name` at the beginning of a line of a file.
fn number_in(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests;
