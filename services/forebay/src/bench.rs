//! `forebay bench`: benchmarks this machine against a baseline of the same run.

mod actions;
mod affinity;
mod bare_stream;
mod cancelling;
mod cas;
mod deaths;
mod decisions;
mod farm;
mod files;
mod fit;
mod floor;
mod input_roots;
mod join;
mod latency;
mod log;
mod memory;
mod merge;
mod messages;
mod offers;
mod queue;
mod rates;
mod report;
mod scenarios;
mod scheduling;
mod sharing;
mod shell;
mod sizing;
mod tail;
mod waiters;
mod window;
mod workspaces;

use std::{process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use settings::Settings;

use crate::{failure::Failure, failure::say, globals::Globals, stdout};

use self::{farm::BenchFarm, report::Report};

/// Options of `forebay bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Benchmark builds: create, get, start latency, and /bin/true builds against bare spawns
    Builds(BuildsArgs),
    /// Benchmark actions: no-op actions against bare spawns, cache hits, input roots
    Actions(actions::ActionsArgs),
    /// Benchmark the scheduler: decisions, warm workspaces, offers to workers
    Scheduling(scheduling::SchedulingArgs),
    /// Benchmark warm workspaces against empty ones, for a stream of builds of a real project
    Workspaces(workspaces::WorkspacesArgs),
    /// Benchmark the content-addressable store: look-ups, small blobs, streams against a bare stream
    Cas(cas::CasArgs),
}

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

/// Runs the chosen benchmark and prints the report.
pub(crate) async fn run(
    args: &BenchArgs,
    globals: &Globals,
    _settings: &Settings,
) -> Result<ExitCode, Failure> {
    match &args.what {
        BenchCommand::Builds(args) => print(&builds(args).await?, globals)?,
        BenchCommand::Workspaces(args) => print(&workspaces::measure(args).await?, globals)?,
        BenchCommand::Scheduling(args) => print(&scheduling::measure(args).await?, globals)?,
        BenchCommand::Actions(args) => {
            let report = Box::pin(actions::measure(args)).await?;
            print(&report, globals)?;
            report.memory.check()?;
        }
        BenchCommand::Cas(args) => {
            let report = cas::measure(args).await?;
            print(&report, globals)?;
            report.memory.check()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &(impl serde::Serialize + std::fmt::Display), globals: &Globals) -> Result<(), Failure> {
    if globals.json { stdout::json(report) } else { stdout::line(&report.to_string()) }
}

async fn builds(args: &BuildsArgs) -> Result<Report, Failure> {
    let mut report = Report::new(args.workspaces);
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
    report: &mut Report,
) -> Result<(), Failure> {
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
