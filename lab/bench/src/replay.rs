//! `forebay bench farm --replay`: runs a stream of jobs on light executors, and compares the waits
//! with those of the simulator.

mod case;
mod live;
mod outcome;
mod simulated;
mod table;

use std::path::{Path, PathBuf};

use clap::Args;
use command_line::failure::say;
use model::BandOrder;
use replay::Estimation;
use simulate::queues::{QueuePolicy, Reading, read_replay};

use self::{case::Case, simulated::SEED};
use crate::{error::BenchError, figures::Figures, memory::Memory, report::BenchReport};

/// Options of `forebay bench farm` for the replay of a stream.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Stream of jobs to run instead, as `forebay sim run --dump` writes it: compares the waits of the jobs
    /// with those of the simulator
    #[arg(
        long,
        value_name = "FILE",
        requires = "workers",
        conflicts_with_all = ["executors", "actions", "groups", "waiting", "slots", "in_flight", "run_ms", "emergency"],
    )]
    pub(crate) replay: Option<PathBuf>,
    /// Workers for the replay, each an executor with one slot: a JSON file, or a number of identical workers
    /// that meet all requirements
    #[arg(long, value_name = "FILE|N", requires = "replay")]
    workers: Option<String>,
    /// Number of seconds of the stream that the farm replays per second
    #[arg(long, value_name = "N", requires = "replay", default_value_t = 16.0, value_parser = speed)]
    speed: f64,
    /// Policies of the replay, in the notation of `forebay sim run`
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        requires = "replay",
        default_value = "1/fcfs/-",
        allow_hyphen_values = true,
        value_parser = policy,
    )]
    policy: Vec<BandOrder>,
}

fn speed(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.01..=10_000.0).contains(number));
    number.ok_or_else(|| "expected a number from 0.01 to 10000".to_owned())
}

/// The order of a policy that uses no estimates. Estimates of a farm are learned, so they differ from those of a stream.
fn policy(text: &str) -> Result<BandOrder, String> {
    match text.parse() {
        Ok(QueuePolicy::One(order, Estimation::None)) => Ok(order),
        Ok(_) => {
            Err("a farm replays only policies without estimates: 1/fcfs/- and 1/least_flex/-".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Replays the stream in `file` with each policy and number of schedulers.
pub(crate) async fn measure(
    file: &Path,
    args: &ReplayArgs,
    schedulers: &[u32],
) -> Result<BenchReport, BenchError> {
    let trace = read_replay(file, args.workers.as_deref().unwrap_or_default());
    let trace = trace.map_err(|error| BenchError::usage("--replay", &error))?;
    let stream = trace.for_seed(SEED, Reading::Text);
    let mut figures = Figures::default();
    figures.field("jobs", stream.jobs.len()).field("workers", stream.workers.len());
    figures.field("speed", args.speed);
    for order in &args.policy {
        for schedulers in schedulers {
            let case = Case { stream: &stream, order: *order, schedulers: *schedulers, speed: args.speed };
            let compared = Box::pin(replay(&case)).await?;
            figures.part(&format!("{order}_schedulers_{schedulers}"), compared);
        }
    }
    let (jobs, workers) = (stream.jobs.len(), stream.workers.len());
    let options = format!(", {}: {jobs} jobs, {workers} workers, speed {}", stream.name, args.speed);
    Ok(BenchReport::new(&options, figures, Memory::default()))
}

async fn replay(case: &Case<'_>) -> Result<Figures, BenchError> {
    let Case { stream, order, schedulers, .. } = case;
    let simulated = simulated::outcome(stream, *order)?;
    let apart = simulated::outcome(&simulated::apart(stream), *order)?;
    say(&format!("replaying {} jobs with 1/{order}/-, schedulers: {schedulers}", stream.jobs.len()));
    let (live, tally) = live::run(case, &simulated).await?;
    let mut figures = Figures::default();
    figures.lines.push(format!("1/{order}/-, schedulers: {schedulers}"));
    figures.append(table::compare(stream, &live, &simulated, &apart));
    figures.figure("grants_beyond_room", "grants without a free slot", tally.beyond, "");
    figures.figure("repeated_grants", "grants of running executions", tally.repeated, "");
    Ok(figures)
}
