//! Compares the congestion window with fixed slots on an executor with little memory, with bursts of actions
//! that use much memory.
//!
//! The executor and its actions are in a control group with 1,200 MiB of memory. Light actions, which sleep, are
//! queued from the beginning and fill all slots; two bursts of hungry actions follow, nine per second, each of which
//! grows to about 105 MB in a second and keeps it for another second. Sizes are neither declared nor learned, so only
//! the window limits concurrent hungry actions. The result of fixed slots depends on their number, which would have to
//! be known in advance.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use model::BlobDigest;

use crate::{error::BenchError, farm::BenchFarm, figures::Figures, progress::say, shell::Shell};

const LIMIT_BYTES: u64 = 1200 << 20;
const LIGHT: usize = 1500;
const LIGHT_SCRIPT: &str = "sleep 0.2";
/// Start times of the bursts.
const BURSTS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];
const HUNGRY: u32 = 36;
const HUNGRY_EVERY: Duration = Duration::from_millis(111);
const HUNGRY_SCRIPT: &str = "(for i in 1 2 3 4 5 6 7 8 9 10; do head -c 10000000 /dev/zero; sleep 0.1; done; sleep 1) | tail > /dev/null";
const MANY: &str = "16";
/// Number of hungry actions that fit into the memory.
const SAFE: &str = "10";

/// Runs the scenario. `None` if no control group can be created.
pub(crate) async fn measure() -> Result<Option<Figures>, BenchError> {
    if let Err(why) = Group::new("probe") {
        say(&format!("skipping the window: cannot create a control group ({why})"));
        return Ok(None);
    }
    say("running bursts of memory-hungry actions with the congestion window");
    let window = [
        ("FOREBAY_EXECUTOR_SLOTS", MANY),
        ("FOREBAY_CONGESTION_WINDOW", "true"),
        ("FOREBAY_WINDOW_START_POINTS", "40"),
        ("FOREBAY_MEMORY_LEFT_PERCENT", "70"),
        ("FOREBAY_WINDOW_TICK_MS", "100"),
        // Ignore other load of this machine.
        ("FOREBAY_LOAD_MAX", "0"),
    ];
    let mut figures = Figures::default();
    figures.part("window", way("window", &window, "congestion window").await?);
    say("running bursts of memory-hungry actions with fixed slots");
    for (key, group, slots) in [("fixed_many", "many", MANY), ("fixed_safe", "safe", SAFE)] {
        let fixed = [("FOREBAY_EXECUTOR_SLOTS", slots), ("FOREBAY_CONGESTION_WINDOW", "false")];
        figures.part(key, way(group, &fixed, &format!("{slots} fixed slots")).await?);
    }
    Ok(Some(figures))
}

/// Figures of one way of admission, in a control group of this name.
async fn way(group: &str, admission: &[(&str, &str)], name: &str) -> Result<Figures, BenchError> {
    let farm = BenchFarm::of_actions(&[("FOREBAY_ACTION_SIZING", "false")]).await?;
    let group =
        Group::new(group).map_err(|error| BenchError::new("cannot create a control group", &error))?;
    // More than the machine has, so that sizes limit nothing.
    let mut settings = vec![("FOREBAY_EXECUTOR_MEMORY_BYTES", "64000000000")];
    settings.extend_from_slice(admission);
    let executor = farm.executor_within("one", &settings, Some(&group.folder)).await?;
    let shell = Shell::new(&farm, 4).await?;
    let light = shell.upload_many(LIGHT_SCRIPT, &[], LIGHT).await?;
    let hungry = shell.upload_many(HUNGRY_SCRIPT, &[], BURSTS.len() * HUNGRY as usize).await?;
    let began = Instant::now();
    let shell = &shell;
    let one = |(action, at): (BlobDigest, Duration)| async move {
        tokio::time::sleep_until((began + at).into()).await;
        // Actions of a burst are not queued behind the light ones.
        shell.execute_urgently(&action, i32::from(at.is_zero())).await.is_ok()
    };
    let times = BURSTS.into_iter().flat_map(|burst| (0..HUNGRY).map(move |turn| burst + HUNGRY_EVERY * turn));
    let all = light.into_iter().map(|action| (action, Duration::ZERO)).chain(hungry.into_iter().zip(times));
    let ended: Vec<bool> = all.map(one).collect::<FuturesUnordered<_>>().collect().await;
    let took = began.elapsed();
    let done = ended.iter().filter(|succeeded| **succeeded).count();
    let kills = group.kills();
    executor.end(nix::sys::signal::Signal::SIGKILL).await;
    farm.stop().await;
    let mut figures = Figures::default();
    figures.figure("kills", &format!("{name}: out-of-memory kills"), kills, "");
    figures.figure("failed", &format!("{name}, failed actions"), ended.len() - done, "");
    let rate = done as f64 / took.as_secs_f64();
    figures.figure("actions_per_s", &format!("{name}, successful actions"), rate, "/s");
    Ok(figures)
}

/// A control group with a memory limit, below that of this process. It is removed when dropped.
struct Group {
    folder: PathBuf,
}

impl Group {
    fn new(name: &str) -> std::io::Result<Self> {
        let parent = own_group()
            .ok_or_else(|| std::io::Error::other("cannot find the control group of this process"))?;
        let folder = parent.join(format!("forebay-bench-{}-{name}", std::process::id()));
        fs::create_dir(&folder)?;
        let group = Self { folder };
        let limit = ["memory.limit_in_bytes", "memory.max"].map(|file| group.folder.join(file));
        let file = limit.iter().find(|file| file.exists());
        let file = file.ok_or_else(|| std::io::Error::other("the control group has no memory limit"))?;
        fs::write(file, LIMIT_BYTES.to_string())?;
        Ok(group)
    }

    /// Number of its processes killed because the memory was full.
    fn kills(&self) -> u64 {
        let read = |file: &str| fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let text = read("memory.oom_control") + &read("memory.events");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.unwrap_or_default()
    }
}

impl Drop for Group {
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
