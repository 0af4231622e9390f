//! `forebay bench builds`: measures builds against bare spawns.

use std::time::Duration;

use clap::Args;

use crate::{
    error::BenchError, farm::BenchFarm, floor, latency, progress::say, queue, rates, report::BuildsReport,
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
    /// Measure only this part: floor, latency, rates, sync or queue
    #[arg(long, value_name = "PART")]
    only: Option<String>,
}

impl BuildsArgs {
    fn wants(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == part)
    }
}

/// Measures all selected parts.
pub(crate) async fn measure(args: &BuildsArgs) -> Result<BuildsReport, BenchError> {
    let mut report = BuildsReport::new(args.workspaces);
    let window = Duration::from_secs(args.seconds);
    if args.wants("latency") || args.wants("rates") {
        let farm = BenchFarm::start(args.workspaces, &[]).await?;
        if let Some(quota) = args.quota {
            farm.set_quota(quota).await?;
        }
        if args.wants("latency") {
            say("measuring the time from create to process start");
            report.start_latency_ms = Some(latency::measure(&farm, 300).await?);
        }
        if args.wants("rates") {
            rates_and_floor(args, &farm, window, &mut report).await?;
        }
        farm.stop().await;
    }
    if args.wants("sync") {
        say("measuring create with sync_interval: always");
        let farm = BenchFarm::start(args.workspaces, &["--sync", "always"]).await?;
        farm.drain(true).await?;
        let few = args.builds / 4;
        report.creates_per_s_sync_always = Some(rates::creates(&farm, few).await?);
        farm.stop().await;
    }
    if args.queued > 0 && args.wants("queue") {
        report.queue = Some(queue::compare(args.workspaces, args.queued).await?);
    }
    Ok(report)
}

/// Measures rates. The baseline is measured before and after, so that changes of the machine's speed become visible.
async fn rates_and_floor(
    args: &BuildsArgs,
    farm: &BenchFarm,
    window: Duration,
    report: &mut BuildsReport,
) -> Result<(), BenchError> {
    say("measuring bare spawns of /bin/true");
    let before = floor::spawns(window).await?;
    say("measuring builds of /bin/true while creating more");
    let finishes = rates::finishes(farm, window * 2).await?;
    let after = floor::spawns(window).await?;
    report.floor(before, after, finishes);
    say("measuring create and get");
    farm.drain(true).await?;
    report.creates_per_s = Some(rates::creates(farm, args.builds).await?);
    report.gets_per_s = Some(rates::gets(farm, args.builds).await?);
    Ok(())
}
