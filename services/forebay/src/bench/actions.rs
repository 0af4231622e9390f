//! `forebay bench actions`: measures no-op actions against bare spawns, with and without a sandbox, and cache hits.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _};
use model::{BlobDigest, DigestFunction};
use reapi::execution::{Action, Command};
use remote::{Executed, Remote, action_of};
use serde::Serialize;

use super::{
    farm::BenchFarm,
    floor, input_roots,
    latency::at,
    memory::Memory,
    report::{Machine, Percentiles, line},
    scenarios::{self, Scenarios},
};
use crate::failure::{Failure, say};

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
    #[arg(long, value_name = "FOLDER")]
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
pub(crate) async fn measure(args: &ActionsArgs) -> Result<ActionsReport, Failure> {
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

async fn unconfined(args: &ActionsArgs, farm: &BenchFarm, report: &mut ActionsReport) -> Result<(), Failure> {
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

async fn confined(args: &ActionsArgs, farm: &BenchFarm, report: &mut ActionsReport) -> Result<(), Failure> {
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

async fn hits(args: &ActionsArgs, farm: &BenchFarm, report: &mut ActionsReport) -> Result<(), Failure> {
    say("measuring cache hits");
    let work = Work::new(farm.remote().await?).await?;
    let action = work.upload_new().await?;
    work.execute(&action).await?;
    let rate = calls(args.in_flight, args.window(), || async { work.execute(&action).await.map(drop) });
    report.execute_hits_per_s = Some(rate.await?);
    let rate = calls(args.in_flight, args.window(), || async {
        let found = work.remote.cached(&action).await?;
        found.map(drop).ok_or_else(|| Failure::plain(1, "a cached result is missing"))
    });
    report.action_results_per_s = Some(rate.await?);
    Ok(())
}

/// Executes unique actions of `/bin/true`.
pub(super) struct Work {
    pub(super) remote: Remote,
    command: Command,
}

impl Work {
    /// Uploads the command of the actions.
    pub(super) async fn new(remote: Remote) -> Result<Self, Failure> {
        let command = Command { arguments: vec!["/bin/true".to_owned()], ..Command::default() };
        let work = Self { remote, command };
        let (_, blobs) = work.action(Vec::new(), &DigestFunction::Sha256.empty(), "");
        work.remote.upload(&blobs).await?;
        Ok(work)
    }

    /// An action with input root `root`, in `pool` unless it is empty.
    pub(super) fn action(
        &self,
        salt: Vec<u8>,
        root: &BlobDigest,
        pool: &str,
    ) -> (BlobDigest, HashMap<BlobDigest, remote::Source>) {
        use reapi::execution::{Platform, platform::Property};
        let property = Property { name: "Pool".to_owned(), value: pool.to_owned() };
        let platform = (!pool.is_empty()).then(|| Platform { properties: vec![property] });
        let action = Action { salt, platform, ..Action::default() };
        action_of(DigestFunction::Sha256, &self.command, action, root)
    }

    async fn upload_new(&self) -> Result<BlobDigest, Failure> {
        let salt = uuid::Uuid::new_v4().as_bytes().to_vec();
        let (digest, mut blobs) = self.action(salt, &DigestFunction::Sha256.empty(), "");
        // The command is already stored, which real clients also know after their first look-up.
        blobs.retain(|blob, _| *blob == digest);
        self.remote.put_many(&blobs).await?;
        Ok(digest)
    }

    /// Executes an action. It is an error if the action fails.
    pub(super) async fn execute(&self, action: &BlobDigest) -> Result<Executed, Failure> {
        let executed = self.remote.execute(action, false, 0, |_, _| ()).await?;
        let status = executed.response.status.as_ref().map_or(0, |status| status.code);
        let exit = executed.response.result.as_ref().map(|result| result.exit_code);
        if status != 0 || exit != Some(0) {
            let message = executed.response.status.unwrap_or_default().message;
            return Err(Failure::plain(
                1,
                format!("an action failed: exit {exit:?}, status {status} {message}"),
            ));
        }
        Ok(executed)
    }

    /// Latency of single actions from upload to result.
    async fn latency(&self, samples: usize) -> Result<Percentiles, Failure> {
        let mut found = Vec::with_capacity(samples);
        for number in 0..samples + 20 {
            let begun = Instant::now();
            let action = self.upload_new().await?;
            self.execute(&action).await?;
            if number >= 20 {
                found.push(begun.elapsed().as_secs_f64() * 1000.0);
            }
        }
        found.sort_by(f64::total_cmp);
        Ok(Percentiles { p50: at(&found, 50), p99: at(&found, 99) })
    }

    /// Rate of actions per second, including their upload.
    async fn unique(&self, in_flight: usize, window: Duration) -> Result<f64, Failure> {
        let one = || async {
            let action = self.upload_new().await?;
            self.execute(&action).await.map(drop)
        };
        calls(in_flight, Duration::from_secs(1), one).await?;
        calls(in_flight, window, one).await
    }
}

/// Rate of calls per second over `window`, with `in_flight` concurrent calls.
pub(super) async fn calls<F: Future<Output = Result<(), Failure>>>(
    in_flight: usize,
    window: Duration,
    one: impl Fn() -> F,
) -> Result<f64, Failure> {
    let begun = Instant::now();
    let going = futures::stream::repeat(()).take_while(|()| futures::future::ready(begun.elapsed() < window));
    let done = going
        .map(|()| one())
        .buffer_unordered(in_flight)
        .try_fold(0_u64, |count, ()| futures::future::ready(Ok(count + 1)))
        .await?;
    Ok(done as f64 / begun.elapsed().as_secs_f64())
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
