//! Compares the congestion window with fixed slots on an executor with little memory, with bursts of actions
//! that use much memory.
//!
//! The executor and its actions are in a control group with 1,200 MiB of memory. Light actions, which sleep, are
//! queued from the beginning and fill all slots; two bursts of hungry actions follow, nine per second, each of which
//! grows to about 105 MB in a second and keeps it for another second. Sizes are neither declared nor learned, so only
//! the window limits concurrent hungry actions. The result of fixed slots depends on their number, which would have to
//! be known in advance.

use std::time::{Duration, Instant};

use command_line::failure::say;
use futures::{StreamExt as _, stream::FuturesUnordered};
use model::BlobDigest;

use crate::{error::BenchError, farm::BenchFarm, figures::Figures, memory_group::MemoryGroup, shell::Shell};

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
    if let Err(why) = MemoryGroup::new("probe", LIMIT_BYTES) {
        say(&format!("skipping the window: {why}"));
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
    let group = MemoryGroup::new(group, LIMIT_BYTES)?;
    // More than the machine has, so that sizes limit nothing.
    let mut settings = vec![("FOREBAY_EXECUTOR_MEMORY_BYTES", "64000000000")];
    settings.extend_from_slice(admission);
    let executor = farm.executor_within("one", &settings, Some(&group)).await?;
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
