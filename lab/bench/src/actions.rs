//! `forebay bench actions`: measures no-op actions against bare spawns, with and without a sandbox, and cache hits.

use std::{fmt, path::PathBuf, time::Duration};

use clap::Args;
use serde::Serialize;

use crate::{
    calls::calls,
    error::BenchError,
    farm::BenchFarm,
    floor, input_roots,
    memory::Memory,
    progress::say,
    report::{Machine, Percentiles, line},
    scenarios::{self, Scenarios},
    work::Work,
};

/// Parts that need only the executor of a farm, in addition to the scenarios.
const PARTS: [&str; 4] = ["none", "bubblewrap", "hits", "inputs"];

/// Options of `forebay bench actions`, which starts farms in temporary folders.
#[derive(Debug, Args)]
pub(crate) struct ActionsArgs {
    /// Duration of each rate measurement in seconds
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// Number of concurrent requests
    #[arg(long, value_name = "N", default_value_t = 64)]
    in_flight: usize,
    /// Number of actions that the executor runs in parallel
    #[arg(long, value_name = "N", default_value_t = 16)]
    executor_slots: u16,
    /// Folder with the sources of a C project to compile, for the affinity measurement
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
    /// Measure only this part
    #[arg(long, value_name = "PART", value_parser = parts())]
    only: Option<String>,
}

fn parts() -> clap::builder::PossibleValuesParser {
    PARTS.into_iter().chain(scenarios::NAMES).collect::<Vec<_>>().into()
}

/// The report that `--json` prints.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ActionsReport {
    machine: Machine,
    in_flight: usize,
    spawns_per_s: Option<f64>,
    /// Rate of unique actions of `/bin/true` without a sandbox.
    actions_per_s: Option<f64>,
    actions_to_spawns_ratio: Option<f64>,
    bubblewrap_spawns_per_s: Option<f64>,
    /// Rate of unique actions of `/bin/true` under bubblewrap.
    sandboxed_actions_per_s: Option<f64>,
    sandboxed_actions_to_spawns_ratio: Option<f64>,
    /// Latency of one action at a time without a sandbox.
    action_latency_ms: Option<Percentiles>,
    sandboxed_action_latency_ms: Option<Percentiles>,
    execute_hits_per_s: Option<f64>,
    action_results_per_s: Option<f64>,
    input_roots: Option<input_roots::InputRoots>,
    #[serde(flatten)]
    scenarios: Scenarios,
    pub(crate) memory: Memory,
}

impl ActionsArgs {
    fn wants(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == part)
    }

    fn window(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

/// Measures all selected parts.
pub(crate) async fn measure(args: &ActionsArgs) -> Result<ActionsReport, BenchError> {
    let mut report = ActionsReport {
        machine: Machine::here(),
        in_flight: args.in_flight,
        spawns_per_s: None,
        actions_per_s: None,
        actions_to_spawns_ratio: None,
        bubblewrap_spawns_per_s: None,
        sandboxed_actions_per_s: None,
        sandboxed_actions_to_spawns_ratio: None,
        action_latency_ms: None,
        sandboxed_action_latency_ms: None,
        execute_hits_per_s: None,
        action_results_per_s: None,
        input_roots: None,
        scenarios: Scenarios::default(),
        memory: Memory::default(),
    };
    let slots = args.executor_slots.to_string();
    let start = |sandbox: &'static str| {
        let slots = slots.clone();
        async move {
            let more = ["--sandbox", sandbox, "--executor-slots", &slots];
            BenchFarm::start(1, &more).await
        }
    };
    if args.wants("none") || args.wants("hits") || args.wants("inputs") {
        let farm = start("none").await?;
        if args.wants("none") {
            unconfined(args, &farm, &mut report).await?;
        }
        if args.wants("hits") {
            hits(args, &farm, &mut report).await?;
        }
        if args.wants("inputs") {
            say("measuring input roots of 5,000 files");
            report.input_roots = Some(input_roots::measure(&farm).await?);
        }
        report.memory.note(&farm);
        farm.stop().await;
    }
    if args.wants("bubblewrap") {
        let farm = start("bubblewrap").await?;
        confined(args, &farm, &mut report).await?;
        report.memory.note(&farm);
        farm.stop().await;
    }
    report.scenarios = Scenarios::measure(|part| args.wants(part), args.project.as_deref()).await?;
    Ok(report)
}

async fn unconfined(
    args: &ActionsArgs,
    farm: &BenchFarm,
    report: &mut ActionsReport,
) -> Result<(), BenchError> {
    say("measuring single and concurrent actions without a sandbox");
    let work = Work::new(farm.remote().await?).await?;
    report.action_latency_ms = Some(work.latency(200).await?);
    let before = floor::spawns(args.window()).await?;
    let rate = work.unique(args.in_flight, args.window() * 2).await?;
    let spawns = f64::midpoint(before, floor::spawns(args.window()).await?);
    report.spawns_per_s = Some(spawns);
    report.actions_per_s = Some(rate);
    report.actions_to_spawns_ratio = Some(rate / spawns);
    Ok(())
}

async fn confined(
    args: &ActionsArgs,
    farm: &BenchFarm,
    report: &mut ActionsReport,
) -> Result<(), BenchError> {
    say("measuring single and concurrent actions under bubblewrap");
    let work = Work::new(farm.remote().await?).await?;
    report.sandboxed_action_latency_ms = Some(work.latency(100).await?);
    let before = floor::confined_spawns(args.window()).await?;
    let rate = work.unique(args.in_flight, args.window() * 2).await?;
    let spawns = f64::midpoint(before, floor::confined_spawns(args.window()).await?);
    report.bubblewrap_spawns_per_s = Some(spawns);
    report.sandboxed_actions_per_s = Some(rate);
    report.sandboxed_actions_to_spawns_ratio = Some(rate / spawns);
    Ok(())
}

async fn hits(args: &ActionsArgs, farm: &BenchFarm, report: &mut ActionsReport) -> Result<(), BenchError> {
    say("measuring cache hits");
    let work = Work::new(farm.remote().await?).await?;
    let action = work.upload_new().await?;
    work.execute(&action).await?;
    let rate = calls(args.in_flight, args.window(), || async { work.execute(&action).await.map(drop) });
    report.execute_hits_per_s = Some(rate.await?);
    let rate = calls(args.in_flight, args.window(), || async {
        let found = work.remote.cached(&action).await?;
        found.map(drop).ok_or_else(|| BenchError::plain("a cached result is missing"))
    });
    report.action_results_per_s = Some(rate.await?);
    Ok(())
}

impl fmt::Display for ActionsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {} actions in flight", self.machine, self.in_flight)?;
        line(f, "bare spawns of /bin/true, two threads", self.spawns_per_s, "/s")?;
        line(f, "unique actions of /bin/true, no sandbox", self.actions_per_s, "/s")?;
        line(f, "actions to bare spawns", self.actions_to_spawns_ratio, "")?;
        line(f, "one action at a time, p50", self.action_latency_ms.map(|p| p.p50), "ms")?;
        line(f, "one action at a time, p99", self.action_latency_ms.map(|p| p.p99), "ms")?;
        line(f, "bare spawns under bubblewrap, two threads", self.bubblewrap_spawns_per_s, "/s")?;
        line(f, "unique actions of /bin/true, bubblewrap", self.sandboxed_actions_per_s, "/s")?;
        line(f, "actions to bare spawns, bubblewrap", self.sandboxed_actions_to_spawns_ratio, "")?;
        let latency = self.sandboxed_action_latency_ms;
        line(f, "one action at a time, bubblewrap, p50", latency.map(|p| p.p50), "ms")?;
        line(f, "one action at a time, bubblewrap, p99", latency.map(|p| p.p99), "ms")?;
        line(f, "Execute, cached", self.execute_hits_per_s, "/s")?;
        line(f, "GetActionResult", self.action_results_per_s, "/s")?;
        if let Some(roots) = &self.input_roots {
            write!(f, "{roots}")?;
        }
        write!(f, "{}", self.scenarios)?;
        write!(f, "{}", self.memory)
    }
}
