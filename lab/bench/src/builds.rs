//! `forebay bench builds`: measures builds against bare spawns.

use std::time::Duration;

use clap::Args;
use command_line::failure::say;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    floor::Spawn,
    latency,
    memory::Memory,
    queue,
    rates::{self, BuildLoad},
    report::BenchReport,
    rounds::{Rounds, Windows},
    sandboxed,
};

/// Options of `forebay bench builds`, which starts farms in temporary folders.
#[derive(Debug, Args)]
pub(crate) struct BuildsArgs {
    /// Duration of each rate measurement in seconds
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// Number of workspaces of the worker
    #[arg(long, value_name = "N", default_value_t = 16)]
    workspaces: u16,
    /// Number of builds for the create and get rates
    #[arg(long, value_name = "N", default_value_t = 40_000)]
    builds: u64,
    /// Quota of the builds' group in ESU of x86 [default: no quota]
    #[arg(long, value_name = "ESU")]
    quota: Option<f64>,
    /// Compare the dispatch rate with this many queued builds to that with 1,000; 0 skips this part
    #[arg(long, value_name = "N", default_value_t = 0)]
    queued: u64,
    /// Measure only this part: latency, rates, sync, sandbox or queue
    #[arg(long, value_name = "PART")]
    only: Option<String>,
}

impl BuildsArgs {
    fn wants(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == part)
    }
}

/// Measures all selected parts.
pub(crate) async fn measure(args: &BuildsArgs) -> Result<BenchReport, BenchError> {
    let window = Duration::from_secs(args.seconds);
    // In the order of the report.
    let (mut figures, mut gets, mut latencies) = (Figures::default(), Figures::default(), Figures::default());
    figures.field("workspaces", args.workspaces);
    if args.wants("latency") || args.wants("rates") {
        let farm = BenchFarm::start(args.workspaces, &[]).await?;
        if let Some(quota) = args.quota {
            farm.set_quota(quota).await?;
        }
        if args.wants("latency") {
            say("measuring the time from create to process start");
            let latency = latency::measure(&farm, 300).await?;
            latencies.percentiles("start_latency_ms", "create to process start", latency, "ms");
        }
        if args.wants("rates") {
            figures.append(rates_and_floor(&farm, window).await?);
            say("measuring create and get");
            farm.drain(true).await?;
            let rate = rates::creates(&farm, args.builds).await?;
            figures.figure("creates_per_s", "create, acknowledged", rate, "/s");
            gets.figure("gets_per_s", "get", rates::gets(&farm, args.builds).await?, "/s");
        }
        farm.stop().await;
    }
    if args.wants("sync") {
        say("measuring create with sync_interval: always");
        let farm = BenchFarm::start(args.workspaces, &["--sync", "always"]).await?;
        farm.drain(true).await?;
        let rate = rates::creates(&farm, args.builds / 4).await?;
        figures.figure("creates_per_s_sync_always", "create, with sync_interval: always", rate, "/s");
        farm.stop().await;
    }
    figures.append(gets).append(latencies);
    if args.wants("sandbox") {
        figures.part("sandbox", sandboxed::compare(args.workspaces, window).await?);
    }
    if args.queued > 0 && args.wants("queue") {
        figures.part("queue", queue::compare(args.workspaces, args.queued).await?);
    }
    Ok(BenchReport::new(&format!(", {} workspaces", args.workspaces), figures, Memory::default()))
}

/// Compares builds with bare spawns.
async fn rates_and_floor(farm: &BenchFarm, window: Duration) -> Result<Figures, BenchError> {
    say("measuring builds of /bin/true while creating more, and bare spawns of it, in turn");
    let rounds = Rounds::measure(farm, Spawn::Plain, Windows::of(window), &BuildLoad { farm }).await?;
    let mut figures = Figures::default();
    figures.figure("spawns_per_s", "bare spawns of /bin/true, two threads", rounds.spawn_rate(), "/s");
    figures.figure("finishes_per_s", "builds of /bin/true while creating more", rounds.rate(), "/s");
    figures.figure("finish_to_spawn_ratio", "builds to bare spawns", rounds.throughput_ratio(), "");
    figures.part("cost", rounds.cost("build"));
    Ok(figures)
}
