//! Server load of an action, from the statistics of the servers.
//!
//! Redis: `total_reads_processed` of `INFO stats` is the number of reads from connections. A script with all its
//! commands, or a pipeline, is one round trip. `total_commands_processed` also counts every command that scripts call.
//! nats-server: the increase of the last sequence numbers of all streams and buckets, which counts every stored
//! message, including those that have been replaced since.

use std::{fmt, time::Duration};

use bus::stream;
use futures::{StreamExt as _, TryStreamExt as _};
use serde::Serialize;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{error::BenchError, farm::BenchFarm, progress::say, report::line, shell::Shell};

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

/// Figures of the scenario, per action.
#[expect(clippy::struct_field_names, reason = "the fields are named after the figures")]
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Messages {
    actions: usize,
    /// Actions per second during the measurement.
    actions_per_s: f64,
    redis_trips: f64,
    /// Commands, including those that scripts call.
    redis_commands: f64,
    jetstream_messages: f64,
}

/// Monotonic counters of the servers.
struct Counts {
    trips: f64,
    commands: f64,
    stored: f64,
}

/// Runs the scenario `messages`.
pub(crate) async fn measure() -> Result<Messages, BenchError> {
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
    Ok(Messages {
        actions: ACTIONS,
        actions_per_s: ACTIONS as f64 / took.as_secs_f64(),
        redis_trips: each(|counts| counts.trips),
        redis_commands: each(|counts| counts.commands),
        jetstream_messages: each(|counts| counts.stored),
    })
}

async fn run(shell: &Shell, count: usize) -> Result<(), BenchError> {
    let actions = shell.upload_many("true", &[], count).await?;
    let all = futures::stream::iter(&actions).map(|action| shell.execute(action));
    all.buffer_unordered(IN_FLIGHT).try_for_each(|_| futures::future::ready(Ok(()))).await
}

async fn count(farm: &BenchFarm) -> Result<Counts, BenchError> {
    let info =
        info(farm).await.map_err(|error| BenchError::new("reading the statistics of Redis", &error))?;
    let value = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse().ok())
            .ok_or_else(|| BenchError::plain(format!("Redis does not report {name}")))
    };
    let mut stored = 0.0;
    for name in STREAMS {
        stored += farm.client.bus().stream_positions(name).await?.1.0 as f64;
    }
    Ok(Counts {
        trips: value("total_reads_processed")?,
        commands: value("total_commands_processed")?,
        stored,
    })
}

async fn info(farm: &BenchFarm) -> std::io::Result<String> {
    let url = &farm.endpoints.redis;
    let address = url.strip_prefix("redis://").unwrap_or(url);
    let mut connection = TcpStream::connect(address).await?;
    connection.write_all(b"INFO stats\r\nQUIT\r\n").await?;
    let mut text = String::new();
    connection.read_to_string(&mut text).await?;
    Ok(text)
}

impl fmt::Display for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(
            f,
            &format!("Redis round trips per action, {} actions", self.actions),
            Some(self.redis_trips),
            "",
        )?;
        line(f, "Redis commands per action, including scripts", Some(self.redis_commands), "")?;
        line(f, "JetStream messages per action", Some(self.jetstream_messages), "")?;
        line(f, "actions per second during that time", Some(self.actions_per_s), "/s")
    }
}
