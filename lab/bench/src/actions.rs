//! `forebay bench actions`: measures no-op actions against bare spawns, with and without a sandbox, and cache hits.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use command_line::failure::say;

use crate::{
    calls::calls,
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    floor::Spawn,
    input_roots,
    memory::Memory,
    report::BenchReport,
    rounds::{Rounds, Windows},
    scenarios,
    work::{ActionLoad, Work},
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

impl ActionsArgs {
    fn wants(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == part)
    }

    fn window(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

/// Measures all selected parts.
pub(crate) async fn measure(args: &ActionsArgs) -> Result<BenchReport, BenchError> {
    let (mut figures, mut more, mut memory) = (Figures::default(), Figures::default(), Memory::default());
    figures.field("in_flight", args.in_flight);
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
            figures.append(unconfined(args, &farm).await?);
        }
        if args.wants("hits") {
            more.append(hits(args, &farm).await?);
        }
        if args.wants("inputs") {
            say("measuring input roots of 5,000 files");
            more.part("input_roots", input_roots::measure(&farm).await?);
        }
        memory.note(&farm);
        farm.stop().await;
    }
    if args.wants("bubblewrap") {
        let farm = start("bubblewrap").await?;
        figures.append(confined(args, &farm).await?);
        memory.note(&farm);
        farm.stop().await;
    }
    figures.append(more);
    figures.append(scenarios::measure(|part| args.wants(part), args.project.as_deref()).await?);
    Ok(BenchReport::new(&format!(", {} actions in flight", args.in_flight), figures, memory))
}

async fn unconfined(args: &ActionsArgs, farm: &BenchFarm) -> Result<Figures, BenchError> {
    say("measuring single and concurrent actions without a sandbox, and bare spawns, in turn");
    let work = Work::new(farm.remote().await?).await?;
    let latency = work.latency(200).await?;
    let load = ActionLoad { work: &work, in_flight: args.in_flight };
    let rounds = Rounds::measure(farm, Spawn::Plain, Windows::of(args.window()), &load).await?;
    let mut figures = Figures::default();
    let spawns = "bare spawns of /bin/true, two threads";
    figures.figure("spawns_per_s", spawns, rounds.spawn_rate(), "/s");
    figures.figure("actions_per_s", "unique actions of /bin/true, no sandbox", rounds.rate(), "/s");
    figures.figure("actions_to_spawns_ratio", "actions to bare spawns", rounds.throughput_ratio(), "");
    figures.percentiles("action_latency_ms", "one action at a time", latency, "ms");
    figures.part("cost", rounds.cost("action"));
    Ok(figures)
}

async fn confined(args: &ActionsArgs, farm: &BenchFarm) -> Result<Figures, BenchError> {
    say("measuring single and concurrent actions under bubblewrap, and bare spawns, in turn");
    let work = Work::new(farm.remote().await?).await?;
    let latency = work.latency(100).await?;
    let load = ActionLoad { work: &work, in_flight: args.in_flight };
    let rounds = Rounds::measure(farm, Spawn::Confined, Windows::of(args.window()), &load).await?;
    let (ratio, mut figures) = (rounds.throughput_ratio(), Figures::default());
    let spawns = "bare spawns under bubblewrap, two threads";
    figures.figure("bubblewrap_spawns_per_s", spawns, rounds.spawn_rate(), "/s");
    let name = "unique actions of /bin/true, bubblewrap";
    figures.figure("sandboxed_actions_per_s", name, rounds.rate(), "/s");
    figures.figure("sandboxed_actions_to_spawns_ratio", "actions to bare spawns, bubblewrap", ratio, "");
    let name = "one action at a time, bubblewrap";
    figures.percentiles("sandboxed_action_latency_ms", name, latency, "ms");
    figures.part("sandboxed_cost", rounds.cost("sandboxed action"));
    Ok(figures)
}

async fn hits(args: &ActionsArgs, farm: &BenchFarm) -> Result<Figures, BenchError> {
    say("measuring cache hits");
    let work = Work::new(farm.remote().await?).await?;
    let action = work.upload_new(1).await?.pop();
    let action = action.ok_or_else(|| BenchError::plain("no action was uploaded"))?;
    work.execute(&action).await?;
    let executes = calls(args.in_flight, args.window(), || async { work.execute(&action).await.map(drop) });
    let executes = executes.await?;
    let results = calls(args.in_flight, args.window(), || async {
        let found = work.remote.cached(&action).await?;
        found.map(drop).ok_or_else(|| BenchError::plain("a cached result is missing"))
    });
    let results = results.await?;
    let mut figures = Figures::default();
    figures.figure("execute_hits_per_s", "Execute, cached", executes, "/s");
    figures.figure("action_results_per_s", "GetActionResult", results, "/s");
    Ok(figures)
}
