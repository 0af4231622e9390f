//! The congestion window against fixed slots, on an executor whose control group has little memory, with bursts of actions that
//! take much of it.
//!
//! The executor and all that it runs are in a control group of 1,200 MiB of their own, below ours. Light actions, which sleep,
//! wait from the beginning and fill whatever there is; twice comes a burst of hungry ones, nine a second, each of which
//! grows to some 105 MB in a second and keeps that for another. Sizes are neither declared nor learned, so that nothing but the
//! window keeps hungry actions apart: what fixed slots do depends on their number, which would have to be known before.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use model::BlobDigest;
use serde::Serialize;

use super::{farm::BenchFarm, report::line, shell::Shell};
use crate::failure::{Failure, say};

const LIMIT_BYTES: u64 = 1200 << 20;
const LIGHT: usize = 1500;
const LIGHT_SCRIPT: &str = "sleep 0.2";
/// When bursts begin, and from one hungry action to the next.
const BURSTS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];
const HUNGRY: u32 = 36;
const HUNGRY_EVERY: Duration = Duration::from_millis(111);
const HUNGRY_SCRIPT: &str = "(for i in 1 2 3 4 5 6 7 8 9 10; do head -c 10000000 /dev/zero; sleep 0.1; done; sleep 1) | tail > /dev/null";
const MANY: &str = "16";
/// As many hungry ones as the memory holds.
const SAFE: &str = "10";

/// The figures.
#[expect(clippy::struct_field_names, reason = "so the figure is called")]
#[derive(Debug, Clone, Serialize)]
pub(super) struct Window {
    window: Way,
    fixed_many: Way,
    fixed_safe: Way,
}

/// One way of admission.
#[derive(Debug, Clone, Serialize)]
struct Way {
    /// Processes that were killed for want of memory.
    kills: u64,
    /// Actions that failed.
    failed: usize,
    /// Actions that succeeded, a second.
    actions_per_s: f64,
}

/// Measures; nothing where no control group can be had.
pub(super) async fn measure() -> Result<Option<Window>, Failure> {
    if let Err(why) = Group::new("probe") {
        say(&format!("the window is not measured: no control group can be had ({why})"));
        return Ok(None);
    }
    say("bursts of memory-hungry actions, with the congestion window");
    let window = [
        ("FOREBAY_EXECUTOR_SLOTS", MANY),
        ("FOREBAY_CONGESTION_WINDOW", "true"),
        ("FOREBAY_WINDOW_START_POINTS", "40"),
        ("FOREBAY_MEMORY_LEFT_PERCENT", "70"),
        ("FOREBAY_WINDOW_TICK_MS", "100"),
        // Whatever else this machine does is no matter here.
        ("FOREBAY_LOAD_MAX", "0"),
    ];
    let window = way("window", &window).await?;
    say("likewise, with fixed slots");
    let fixed = |slots| [("FOREBAY_EXECUTOR_SLOTS", slots), ("FOREBAY_CONGESTION_WINDOW", "false")];
    let fixed_many = way("many", &fixed(MANY)).await?;
    let fixed_safe = way("safe", &fixed(SAFE)).await?;
    Ok(Some(Window { window, fixed_many, fixed_safe }))
}

async fn way(name: &str, admission: &[(&str, &str)]) -> Result<Way, Failure> {
    let farm = BenchFarm::of_actions(&[("FOREBAY_ACTION_SIZING", "false")]).await?;
    let group = Group::new(name).map_err(|error| Failure::new(1, "a control group", &error))?;
    // More than there is, so that sizes limit nothing.
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
        // Who comes in a burst does not wait behind all that waits already.
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
    Ok(Way { kills, failed: ended.len() - done, actions_per_s: done as f64 / took.as_secs_f64() })
}

/// A control group of this process's own, with a limit on its memory. Removed when dropped.
struct Group {
    folder: PathBuf,
}

impl Group {
    fn new(name: &str) -> std::io::Result<Self> {
        let parent = own_group().ok_or_else(|| std::io::Error::other("it is not known which we are in"))?;
        let folder = parent.join(format!("forebay-bench-{}-{name}", std::process::id()));
        fs::create_dir(&folder)?;
        let group = Self { folder };
        let limit = ["memory.limit_in_bytes", "memory.max"].map(|file| group.folder.join(file));
        let file = limit.iter().find(|file| file.exists());
        let file = file.ok_or_else(|| std::io::Error::other("it has no limit on memory"))?;
        fs::write(file, LIMIT_BYTES.to_string())?;
        Ok(group)
    }

    /// Processes of it that were killed for want of memory.
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
        // What was killed is collected first.
        while fs::remove_dir(&self.folder).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The folder of the group that limits our memory: of version 1, or of version 2 where there is no other.
fn own_group() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let path = |wanted: &str| {
        own.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|one| one == wanted).then_some(path)
        })
    };
    // `SOURCE POINT TYPE OPTIONS ...`
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

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = format!("{MANY} fixed slots");
        let safe = format!("{SAFE} fixed slots");
        for (name, way) in [
            ("congestion window", &self.window),
            (many.as_str(), &self.fixed_many),
            (safe.as_str(), &self.fixed_safe),
        ] {
            line(f, &format!("{name}: killed for memory"), Some(way.kills as f64), "")?;
            line(f, &format!("{name}, actions failed"), Some(way.failed as f64), "")?;
            line(f, &format!("{name}, actions that succeeded"), Some(way.actions_per_s), "/s")?;
        }
        Ok(())
    }
}
