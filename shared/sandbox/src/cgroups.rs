//! Control groups, where there are any to use: limits on memory and processes, and the peak of memory.
//!
//! A group may be put only below one that is ours: the root that this process sees (of a machine, or of a
//! container), or one that the settings name. A service's own group belongs to who started the service.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

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
        Self { memory: usable("memory"), pids: usable("pids") }
    }

    /// A group of this name, with what there is; what fails is told and left out.
    pub(crate) fn group(&self, name: &str, processes_max: Option<u64>) -> Group {
        let make = |place: &Option<(Version, PathBuf)>| {
            let (version, parent) = place.as_ref()?;
            let folder = parent.join(format!("forebay-{name}"));
            match fs::create_dir(&folder) {
                Ok(()) => {}
                // Left by an executor that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    tracing::warn!(folder = %folder.display(), %error, "no control group for a slot");
                    return None;
                }
            }
            Some((*version, folder))
        };
        let pids = processes_max.and_then(|max| {
            let (_, folder) = make(&self.pids)?;
            if let Err(error) = fs::write(folder.join("pids.max"), max.to_string()) {
                tracing::warn!(folder = %folder.display(), %error, "no limit on a slot's processes");
                return None;
            }
            Some(folder)
        });
        Group { memory: make(&self.memory).map(|(version, folder)| Memory::new(version, folder)), pids }
    }
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
    pids: Option<PathBuf>,
}

impl Group {
    /// The files through which a process enters.
    pub(crate) fn join_files(&self) -> Vec<PathBuf> {
        let folders = [self.memory.as_ref().map(|memory| &memory.folder), self.pids.as_ref()];
        let mut files: Vec<_> =
            folders.into_iter().flatten().map(|folder| folder.join("cgroup.procs")).collect();
        files.dedup();
        files
    }

    /// Whether the number of processes is limited.
    pub(crate) fn limits_processes(&self) -> bool {
        self.pids.is_some()
    }

    /// Before a run: sets its limit and forgets the last peak.
    pub(crate) fn begin(&self, memory_bytes_max: Option<u64>) {
        if let Some(memory) = &self.memory {
            memory.begin(memory_bytes_max);
        }
    }

    /// After a run: its peak of memory, if it is known, and whether something was killed for want of it.
    pub(crate) fn end(&self) -> (Option<u64>, bool) {
        self.memory.as_ref().map_or((None, false), Memory::end)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for folder in self.memory.iter().map(|memory| &memory.folder).chain(&self.pids) {
            // While the last process is dying it stays; the next of that name uses it.
            let _ = fs::remove_dir(folder);
        }
    }
}

#[derive(Debug)]
struct Memory {
    version: Version,
    folder: PathBuf,
    /// Read from and reset through this one descriptor: that is how version 2 has it.
    peak: Option<File>,
    before: Mutex<Before>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Before {
    limit: Option<u64>,
    kills: u64,
    /// Whether the peak was reset.
    reset: bool,
}

impl Memory {
    fn new(version: Version, folder: PathBuf) -> Self {
        let peak = match version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        };
        let peak = File::options().read(true).write(true).open(folder.join(peak)).ok();
        let memory = Self { version, folder, peak, before: Mutex::default() };
        // Left by a predecessor, perhaps.
        memory.limit(None);
        memory
    }

    fn begin(&self, limit: Option<u64>) {
        let mut before = self.before();
        if before.limit != limit {
            self.limit(limit);
            before.limit = limit;
        }
        before.reset = self.peak.as_ref().is_some_and(|mut peak| peak.write(b"0").is_ok());
        before.kills = self.kills();
    }

    fn end(&self) -> (Option<u64>, bool) {
        let before = *self.before();
        let peak = self.peak.as_ref().filter(|_| before.reset).and_then(|peak| {
            let mut text = [0; 32];
            let length = peak.read_at(&mut text, 0).ok()?;
            std::str::from_utf8(text.get(..length)?).ok()?.trim().parse().ok()
        });
        (peak, self.kills() > before.kills)
    }

    fn before(&self) -> std::sync::MutexGuard<'_, Before> {
        self.before.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn limit(&self, bytes: Option<u64>) {
        let write = |file: &str, text: String| fs::write(self.folder.join(file), text);
        let text = |none: &str| bytes.map_or(none.to_owned(), |bytes| bytes.to_string());
        let done = match self.version {
            Version::One => {
                // Memory and swap together may never be less than memory alone, so it makes way first. A kernel
                // that does not count swap has no such file.
                let _ = write("memory.memsw.limit_in_bytes", "-1".to_owned());
                let done = write("memory.limit_in_bytes", text("-1"));
                let _ = write("memory.memsw.limit_in_bytes", text("-1"));
                done
            }
            Version::Two => {
                let _ = write("memory.swap.max", bytes.map_or("max", |_| "0").to_owned());
                write("memory.max", text("max"))
            }
        };
        if let Err(error) = done {
            tracing::warn!(folder = %self.folder.display(), %error, "no limit on a slot's memory");
        }
    }

    /// How many processes were killed in this group for want of memory, ever.
    fn kills(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
