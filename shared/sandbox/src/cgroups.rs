//! Control groups, if the machine allows them: limits on memory and processes, peak memory, and processor time.
//!
//! A group is created only below a folder that the executor owns: the root that this process sees (of a
//! machine, or of a container), or one that the settings name. A service's own group belongs to the process
//! that started the service.

mod cpuset;
mod locked_group;
mod memory;
mod pids;
mod processors;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use locked_group::LockedGroup;
use memory::Memory;
use pids::Pids;
pub use processors::CpuLimits;
use processors::Processors;
use shim::Cores;

use crate::error::SandboxError;

/// Prefix of the name of every group that an executor creates.
const PREFIX: &str = "forebay-";
/// Groups without a lock: that of an executor itself, and short-lived ones that test whether a group can be created.
const UNLOCKED: [&str; 2] = ["forebay-self", "forebay-trial-"];

/// Where to create groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Parent {
    /// Below the root that this process sees, if the process is in that root itself.
    #[default]
    Auto,
    /// Below the group of this process, which was delegated to it (systemd's `Delegate=yes`).
    Own,
    /// Below this folder, of either version.
    At(PathBuf),
    /// Control groups are not used.
    Off,
}

/// The folders below which groups may be created.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cgroups {
    memory: Option<(Version, PathBuf)>,
    pids: Option<(Version, PathBuf)>,
    /// Version 2 provides processor time in every group; version 1 has a separate hierarchy for it.
    cpu: Option<(Version, PathBuf)>,
    /// The controller that distributes processor time.
    processors: Option<(Version, PathBuf)>,
    /// The controller that binds processes to processors, if it was asked for.
    cpuset: Option<(Version, PathBuf)>,
}

/// The interface version of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A separate hierarchy for each controller.
    One,
    /// One hierarchy for all controllers.
    Two,
}

impl Cgroups {
    /// Detects the usable controllers. Never fails: an unusable controller is absent.
    pub fn detect(parent: &Parent) -> Self {
        let (own, mounts) = hierarchies();
        Self::find(parent, &own, &mounts)
    }

    /// The same with the controller that binds commands to the processors of their slot, if it is usable.
    #[must_use]
    pub fn with_cpuset(self, parent: &Parent) -> Self {
        let (own, mounts) = hierarchies();
        Self { cpuset: usable_folder(parent, &own, &mounts, "cpuset"), ..self }
    }

    /// Whether commands cannot use other processors than those of their slot.
    pub fn binds_cores(&self) -> bool {
        self.cpuset.is_some()
    }

    /// Whether the memory of commands can be limited.
    pub fn limits_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether the number of a command's processes can be limited.
    pub fn limits_processes(&self) -> bool {
        self.pids.is_some()
    }

    fn find(parent: &Parent, own: &str, mounts: &str) -> Self {
        let usable = |controller: &str| usable_folder(parent, own, mounts, controller);
        let (memory, pids) = (usable("memory"), usable("pids"));
        // If that hierarchy also distributes processor time, a new group would change the shares.
        let alone = folder(own, mounts, Some("cpu"), true) != folder(own, mounts, Some("cpuacct"), true);
        let cpu = memory.iter().chain(&pids).find(|(version, _)| *version == Version::Two).cloned();
        let cpu = cpu.or_else(|| usable("cpuacct").filter(|(version, _)| alone && *version == Version::One));
        let processors = usable("cpu");
        Self { memory, pids, cpu, processors, cpuset: None }
    }

    /// A group of this name with the usable controllers; a controller that fails is logged and left out. Its processes use
    /// `cores`. Only a group that `distributes` can limit processor time: where others have no group of
    /// their own, it changes their shares.
    pub(crate) fn group(
        &self,
        name: &str,
        processes_max: Option<u64>,
        cores: &Cores,
        distributes: bool,
    ) -> Group {
        let mut locked: Vec<LockedGroup> = Vec::new();
        let mut make = |place: &Option<(Version, PathBuf)>| {
            let (version, parent) = place.as_ref()?;
            let folder = parent.join(format!("{PREFIX}{name}"));
            if locked.iter().all(|locked| locked.folder != folder) {
                let made = LockedGroup::at(&folder)
                    .map_err(|source| SandboxError::file("creating", &folder, source));
                locked.push(usable(made)?);
            }
            Some((*version, folder))
        };
        let memory = make(&self.memory).and_then(|(version, folder)| usable(Memory::new(version, folder)));
        let pids = make(&self.pids).and_then(|(_, folder)| usable(Pids::new(folder, processes_max)));
        let cpu = make(&self.cpu);
        let processors = if distributes { make(&self.processors) } else { None };
        let processors = processors.and_then(|(version, folder)| usable(Processors::new(version, folder)));
        if let Some((version, parent)) = self.cpuset.as_ref().filter(|_| !cores.processors.is_empty()) {
            let folder = parent.join(format!("{PREFIX}{name}"));
            if locked.iter().any(|locked| locked.folder == folder) {
                usable(cpuset::bind(*version, parent, &folder, cores));
            } else {
                locked.extend(usable(bound(*version, parent, &folder, cores)));
            }
        }
        Group { memory, pids, cpu, processors, locked }
    }

    /// Removes the groups of executors that have died. Groups of live executors are not touched.
    pub fn sweep(&self) {
        let parents: HashSet<&Path> = [&self.memory, &self.pids, &self.cpu, &self.processors, &self.cpuset]
            .into_iter()
            .flatten()
            .map(|(_, path)| path.as_path())
            .collect();
        for entry in parents.into_iter().filter_map(|parent| fs::read_dir(parent).ok()).flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let ours =
                name.starts_with(PREFIX) && !UNLOCKED.iter().any(|unlocked| name.starts_with(unlocked));
            if ours && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                LockedGroup::sweep(&entry.path());
            }
        }
    }
}

/// The control groups of this process, and what is mounted.
fn hierarchies() -> (String, String) {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    (read("/proc/self/cgroup"), read("/proc/self/mountinfo"))
}

/// The folder below which groups with a controller may be created.
fn usable_folder(parent: &Parent, own: &str, mounts: &str, controller: &str) -> Option<(Version, PathBuf)> {
    match parent {
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
    }
}

/// A group whose processes use these cores. A group that could not be bound is removed: no process could enter it.
fn bound(version: Version, parent: &Path, group: &Path, cores: &Cores) -> Result<LockedGroup, SandboxError> {
    let locked = LockedGroup::at(group).map_err(|source| SandboxError::file("creating", group, source))?;
    cpuset::bind(version, parent, group, cores)?;
    Ok(locked)
}

/// Logs an error and continues without the controller.
fn usable<T>(part: Result<T, SandboxError>) -> Option<T> {
    part.inspect_err(|error| {
        let source = std::error::Error::source(error).map(ToString::to_string);
        tracing::warn!(%error, source, "a slot has no control group");
    })
    .ok()
}

/// The group of a process in the hierarchy of a controller, and its visible ancestors: the limit of each of them applies.
/// `own` and `mounts` are the contents of its `cgroup` and `mountinfo` in `/proc`.
pub fn control_groups(controller: &str, own: &str, mounts: &str) -> Option<(Version, Vec<PathBuf>)> {
    let at = |controller| {
        let (point, below) = place(own, mounts, controller)?;
        let groups = below.ancestors().map(|path| point.join(path).components().collect());
        Some(groups.collect::<Vec<PathBuf>>())
    };
    let one = at(Some(controller)).map(|groups| (Version::One, groups));
    one.or_else(|| at(None).map(|groups| (Version::Two, groups)))
}

/// The folder of this process's group in a hierarchy: of this controller, or of version 2. Unless `any` group is
/// accepted, only if it is the visible root.
fn folder(own: &str, mounts: &str, controller: Option<&str>, any: bool) -> Option<PathBuf> {
    let (point, below) = place(own, mounts, controller)?;
    (any || below.as_os_str().is_empty()).then(|| point.join(below))
}

/// Mount point of a hierarchy, and this process's group below it.
fn place<'a>(own: &'a str, mounts: &'a str, controller: Option<&str>) -> Option<(&'a Path, &'a Path)> {
    // The format is `4:memory,cpu:/path` or `0::/path`.
    let own = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let ours = match controller {
            Some(controller) => controllers.split(',').any(|one| one == controller),
            None => controllers.is_empty(),
        };
        ours.then_some(path)
    })?;
    // The format is `ID PARENT DEVICE ROOT MOUNTPOINT OPTIONS... - TYPE SOURCE OPTIONS`.
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
        // The root has no limits, and no file that identifies the controller.
        _ => folder.join("cgroup.procs").exists() && !folder.join("memory.usage_in_bytes").exists(),
    };
    has && can_make(folder)
}

/// Tests whether a group can be created, by creating one: mode bits prove little.
fn can_make(folder: &Path) -> bool {
    let trial = folder.join(format!("forebay-trial-{}", std::process::id()));
    fs::create_dir(&trial).is_ok() && fs::remove_dir(&trial).is_ok()
}

/// Enables a controller of version 2 for the groups below.
fn delegate(folder: &Path, controller: &str) -> bool {
    let has = |file: &str| {
        let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
        text.split_ascii_whitespace().any(|one| one == controller)
    };
    let control = folder.join("cgroup.subtree_control");
    let enable = || fs::write(&control, format!("+{controller}")).is_ok();
    if !has("cgroup.controllers") || !can_make(folder) {
        return false;
    }
    if has("cgroup.subtree_control") || enable() {
        return true;
    }
    // A group that enables controllers may not contain processes, and this one may contain this process.
    let leaf = folder.join("forebay-self");
    let moved = fs::create_dir_all(&leaf).is_ok() && fs::write(leaf.join("cgroup.procs"), "0").is_ok();
    moved && enable()
}

/// The control groups of one slot, which its processes enter at their start.
#[derive(Debug, Default)]
pub(crate) struct Group {
    memory: Option<Memory>,
    pids: Option<Pids>,
    cpu: Option<(Version, PathBuf)>,
    processors: Option<Processors>,
    locked: Vec<LockedGroup>,
}

impl Group {
    /// The files through which a process enters.
    pub(crate) fn join_files(&self) -> Vec<PathBuf> {
        self.locked.iter().map(|locked| locked.folder.join("cgroup.procs")).collect()
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

    /// Before a run: sets its limits and resets the peak. The limit of `processes` is in addition
    /// to the existing ones.
    pub(crate) fn begin(
        &self,
        memory_bytes_max: Option<u64>,
        processes: Option<u64>,
    ) -> Result<(), SandboxError> {
        self.memory.as_ref().map_or(Ok(()), |memory| memory.begin(memory_bytes_max))?;
        self.pids.as_ref().map_or(Ok(()), |pids| pids.begin(processes))
    }

    /// Before a run in a group that is kept: sets the limits of all its processes together, and resets the peak.
    pub(crate) fn begin_kept(
        &self,
        memory_bytes_max: Option<u64>,
        processes_max: Option<u64>,
        cpu: CpuLimits,
    ) -> Result<(), SandboxError> {
        self.memory.as_ref().map_or(Ok(()), |memory| memory.begin(memory_bytes_max))?;
        self.processors.as_ref().map_or(Ok(()), |processors| processors.begin(cpu))?;
        self.pids.as_ref().map_or(Ok(()), |pids| pids.begin_total(processes_max))
    }

    /// Whether the run was refused a process or thread because of its limit.
    pub(crate) fn is_over_processes(&self) -> bool {
        self.pids.as_ref().is_some_and(Pids::is_over)
    }

    /// User and system time of all processes that ever were in the group, including the slot's own process.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        match self.cpu.as_ref()? {
            (Version::One, folder) => number_in(&folder.join("cpuacct.usage"), "").map(Duration::from_nanos),
            (Version::Two, folder) => {
                number_in(&folder.join("cpu.stat"), "usage_usec ").map(Duration::from_micros)
            }
        }
    }

    /// After a run: its peak memory, if it is known, and whether a process was killed because memory ran out.
    pub(crate) fn end(&self) -> (Option<u64>, bool) {
        self.memory.as_ref().map_or((None, false), Memory::end)
    }
}

/// The number that follows `name` at the start of a line of a file.
fn number_in(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests;
