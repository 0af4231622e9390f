//! Shuts down tool servers that idle workspaces keep, when memory runs short (section 4.4 of the paper): the least
//! recently used first, one at a time. It also shuts down those that no build has used for long, because they may
//! consume processor time for nothing. It checks only while a workspace has tool servers.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use service::ServiceError;
use tracing::{debug, info};

use crate::shared::Shared;

/// Time between two checks.
const PERIOD: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(100);
/// How long after its last build a tool server is kept.
const AGE: Duration = Duration::from_secs(3 * 60 * 60);

/// Watches until the worker ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let most = f64::from(shared.settings.tool_memory_percent) / 100.0;
    let limits = Limits::find(Path::new("/"));
    loop {
        shared.workspaces.tools.notified().await;
        while let Some((since, oldest)) = shared.workspaces.with_tools().first() {
            let (used, age) = (limits.used_share(), since.elapsed());
            let Some(why) = why(used, most, age) else {
                tokio::time::sleep(PERIOD).await;
                continue;
            };
            info!(workspace = oldest, used, most, ?age, why, "shutting down an idle tool server");
            if shared.workspaces.shut_down(*oldest, why).await.is_err() {
                debug!(workspace = oldest, "the tool server is in use again or already ending");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Why to shut down the least recently used tool server, last used `age` ago; `None` to keep it.
fn why(used: f64, most: f64, age: Duration) -> Option<&'static str> {
    if used > most {
        Some("memory")
    } else if age >= AGE {
        Some("age")
    } else {
        None
    }
}

/// Memory limits that apply to this process.
struct Limits {
    /// Path of `/proc/meminfo`, below the root.
    machine: PathBuf,
    /// Control groups that contain this process, with or without a limit.
    groups: Vec<Group>,
}

struct Group {
    folder: PathBuf,
    files: &'static Files,
}

/// The names of a control group's files.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` with the page cache that can be reclaimed.
    reclaimable: &'static str,
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};
const V2: Files = Files { limit: "memory.max", used: "memory.current", reclaimable: "inactive_file" };

impl Limits {
    /// Finds the limits below `root`, which is `/` except in tests.
    fn find(root: &Path) -> Self {
        let mounted = root.join("sys/fs/cgroup");
        let mut groups = Vec::new();
        // A system without control groups has only the machine's memory.
        for line in fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default().lines() {
            // `NUMBER:CONTROLLERS:PATH`
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let (mounted, files) = if controllers.split(',').any(|name| name == "memory") {
                (mounted.join("memory"), &V1)
            } else if controllers.is_empty() {
                (mounted.clone(), &V2)
            } else {
                continue;
            };
            // In a container the path may be the host's, and the group itself be mounted as the root.
            for path in Path::new(path.trim_start_matches('/')).ancestors() {
                groups.push(Group { folder: mounted.join(path), files });
            }
        }
        Self { machine: root.join("proc/meminfo"), groups }
    }

    /// The share of memory in use, of the machine or of a control group, whichever is larger.
    fn used_share(&self) -> f64 {
        let groups = self.groups.iter().filter_map(Group::used_share);
        groups.chain(machine_share(&self.machine)).fold(0.0, f64::max)
    }
}

impl Group {
    fn used_share(&self) -> Option<f64> {
        let number = |name: &str| -> Option<f64> {
            fs::read_to_string(self.folder.join(name)).ok()?.trim().parse().ok()
        };
        // Without a limit the file holds `max` or a number larger than any machine's memory: then the share
        // is close to zero.
        let limit = number(self.files.limit).filter(|limit| *limit > 0.0)?;
        let used = number(self.files.used)?;
        // Without the statistics, nothing counts as reclaimable.
        let stat = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let reclaimable = field(&stat, self.files.reclaimable).unwrap_or(0.0);
        Some((used - reclaimable).max(0.0) / limit)
    }
}

fn machine_share(file: &Path) -> Option<f64> {
    let text = fs::read_to_string(file).ok()?;
    let (total, available) = (field(&text, "MemTotal:")?, field(&text, "MemAvailable:")?);
    (total > 0.0).then(|| (total - available).max(0.0) / total)
}

/// The number that follows a name at the start of a line.
fn field(text: &str, name: &str) -> Option<f64> {
    let mut words = text.lines().map(str::split_ascii_whitespace);
    let mut found = words.find_map(|mut words| (words.next() == Some(name)).then_some(words))?;
    found.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn root(files: &[(&str, &str)]) -> TempDir {
        let root = TempDir::new().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn percent(files: &[(&str, &str)]) -> f64 {
        (Limits::find(root(files).path()).used_share() * 1000.0).round() / 10.0
    }

    const MACHINE: (&str, &str) =
        ("proc/meminfo", "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    700 kB\n");

    #[test]
    fn the_scarcer_of_machine_and_control_group_counts() {
        assert!(percent(&[]).abs() < 0.1);
        assert!((percent(&[MACHINE]) - 30.0).abs() < 0.1);
        let v2 = |limit: &'static str| {
            percent(&[
                MACHINE,
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("sys/fs/cgroup/a/b/memory.current", "500\n"),
                ("sys/fs/cgroup/a/memory.max", limit),
                ("sys/fs/cgroup/a/memory.current", "900\n"),
                ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 100\n"),
            ])
        };
        assert!((v2("1000\n") - 80.0).abs() < 0.1);
        assert!((v2("max\n") - 30.0).abs() < 0.1);
        let v1 = percent(&[
            MACHINE,
            ("proc/self/cgroup", "9:memory,x:/nowhere/here\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "600\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 5\ntotal_inactive_file 10\n"),
        ]);
        assert!((v1 - 59.0).abs() < 0.1);
    }

    #[test]
    fn memory_or_age_ends_a_tool_server() {
        let young = AGE.checked_sub(Duration::from_secs(1)).unwrap();
        assert_eq!(why(0.8, 0.8, young), None);
        assert_eq!(why(0.9, 0.8, Duration::ZERO), Some("memory"));
        assert_eq!(why(0.8, 0.8, AGE), Some("age"));
    }

    #[test]
    fn this_machine_can_be_read() {
        let share = Limits::find(Path::new("/")).used_share();
        assert!(share > 0.0 && share < 1.1, "{share}");
    }
}
