//! Server load of an action, from the statistics of the servers.
//!
//! Redis: `total_reads_processed` of `INFO stats` is the number of reads from connections. A script with all its
//! commands, or a pipeline, is one round trip. `total_commands_processed` also counts every command that scripts call.
//! nats-server: the increase of the last sequence numbers of all streams and buckets, which counts every stored
//! message, including those that have been replaced since.

use std::time::Duration;

use bus::stream;
use futures::{StreamExt as _, TryStreamExt as _};

use crate::{
    error::BenchError, farm::BenchFarm, figures::Figures, progress::say, redis_info::RedisInfo, shell::Shell,
};

const ACTIONS: usize = 10_000;
const WARM_UP: usize = 500;
const IN_FLIGHT: usize = 64;
/// Time after the last answer for messages that follow it.
const AFTER: Duration = Duration::from_secs(2);
const STREAMS: [&str; 10] = [
    stream::REQUESTS,
    stream::EVENTS,
    stream::REJECTED,
    stream::LEASES,
    stream::ACTIONS,
    stream::EXECUTORS,
    stream::LOGS,
    stream::QUOTA,
    stream::MODELS,
    stream::SETTINGS,
];

/// Monotonic counters of the servers.
struct Counts {
    trips: f64,
    commands: f64,
    stored: f64,
}

/// Runs the scenario `messages`.
pub(crate) async fn measure() -> Result<Figures, BenchError> {
    say("counting the server load of 10,000 actions");
    let farm = BenchFarm::of_actions(&[]).await?;
    let _executor = farm.executor("one", &[("FOREBAY_EXECUTOR_SLOTS", "16")]).await?;
    let shell = Shell::new(&farm, 2).await?;
    run(&shell, WARM_UP).await?;
    tokio::time::sleep(AFTER).await;
    let before = count(&farm).await?;
    let begun = std::time::Instant::now();
    run(&shell, ACTIONS).await?;
    let took = begun.elapsed();
    tokio::time::sleep(AFTER).await;
    let after = count(&farm).await?;
    farm.stop().await;
    let each = |of: fn(&Counts) -> f64| (of(&after) - of(&before)) / ACTIONS as f64;
    let commands = "Redis commands per action, including scripts";
    let mut figures = Figures::default();
    figures.field("actions", ACTIONS);
    let trips = format!("Redis round trips per action, {ACTIONS} actions");
    figures.figure("redis_trips", &trips, each(|counts| counts.trips), "");
    figures.figure("redis_commands", commands, each(|counts| counts.commands), "");
    figures.figure("jetstream_messages", "JetStream messages per action", each(|counts| counts.stored), "");
    let rate = ACTIONS as f64 / took.as_secs_f64();
    figures.figure("actions_per_s", "actions per second during that time", rate, "/s");
    Ok(figures)
}

async fn run(shell: &Shell, count: usize) -> Result<(), BenchError> {
    let actions = shell.upload_many("true", &[], count).await?;
    let all = futures::stream::iter(&actions).map(|action| shell.execute(action));
    all.buffer_unordered(IN_FLIGHT).try_for_each(|_| futures::future::ready(Ok(()))).await
}

async fn count(farm: &BenchFarm) -> Result<Counts, BenchError> {
    let info = RedisInfo::read(farm).await?;
    let mut stored = 0.0;
    for name in STREAMS {
        stored += farm.client.bus().stream(name).positions().await?.1.0 as f64;
    }
    Ok(Counts {
        trips: info.value("total_reads_processed")? as f64,
        commands: info.value("total_commands_processed")? as f64,
        stored,
    })
}
