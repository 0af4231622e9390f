//! Control groups with little memory, for benchmarks.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::error::BenchError;

/// A control group with a memory limit, below that of this process. It is removed when dropped.
pub(crate) struct MemoryGroup {
    pub(crate) folder: PathBuf,
}

impl MemoryGroup {
    /// A group of this name with this limit.
    pub(crate) fn new(name: &str, bytes: u64) -> Result<Self, BenchError> {
        Self::create(name, bytes).map_err(|error| BenchError::new("cannot create a control group", &error))
    }

    fn create(name: &str, bytes: u64) -> std::io::Result<Self> {
        let parent = own_group()
            .ok_or_else(|| std::io::Error::other("cannot find the control group of this process"))?;
        let folder = parent.join(format!("forebay-bench-{}-{name}", std::process::id()));
        fs::create_dir(&folder)?;
        let group = Self { folder };
        let limit = ["memory.limit_in_bytes", "memory.max"].map(|file| group.folder.join(file));
        let file = limit.iter().find(|file| file.exists());
        let file = file.ok_or_else(|| std::io::Error::other("the control group has no memory limit"))?;
        fs::write(file, bytes.to_string())?;
        Ok(group)
    }

    /// Number of its processes killed because the memory was full.
    pub(crate) fn kills(&self) -> u64 {
        let read = |file: &str| fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let text = read("memory.oom_control") + &read("memory.events");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.unwrap_or_default()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(5);
        // Killed processes must be reaped first.
        while fs::remove_dir(&self.folder).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Folder of the control group that limits the memory of this process: version 1, else version 2.
fn own_group() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let path = |wanted: &str| {
        own.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|one| one == wanted).then_some(path)
        })
    };
    // Each line is `SOURCE POINT TYPE OPTIONS ...`.
    let point = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, point, found, options, ..] = words.as_slice() else { return None };
            let fits = *found == kind && (option.is_empty() || options.split(',').any(|one| one == option));
            fits.then_some(Path::new(*point))
        })
    };
    let one = path("memory").zip(point("cgroup", "memory"));
    let (path, point) = one.or_else(|| path("").zip(point("cgroup2", "")))?;
    Some(point.join(path.trim_start_matches('/')))
}
