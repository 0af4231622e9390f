//! Time until an executor is full that joins while ten thousand actions wait.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime},
};

use command_line::failure::say;
use model::ExecutorHeartbeat;
use nix::sys::signal::Signal;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    shell::{Shell, until},
    statistics::median_and_worst,
};

const ROUNDS: usize = 20;
const QUEUED: usize = 10_000;
const SLOTS: usize = 16;
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the scenario `join`.
pub(crate) async fn measure() -> Result<Figures, BenchError> {
    say("queueing 10,000 actions for executors that join");
    let farm = BenchFarm::of_actions(&[]).await?;
    let slots = SLOTS.to_string();
    // Running actions are requeued immediately when it leaves.
    let settings = [("FOREBAY_EXECUTOR_SLOTS", slots.as_str()), ("FOREBAY_DRAIN_SECONDS", "0")];
    // From now on the pool exists.
    farm.executor("first", &settings).await?.end(Signal::SIGTERM).await;
    let shell = Shell::new(&farm, 10).await?;
    let folder = shell.marks().display();
    // Each run creates a file named after its working directory, without starting another process.
    let script = format!("IFS=/; set -- $PWD; IFS=-; : > {folder}/\"$*\"; sleep 60");
    let actions = shell.upload_many(&script, &[], QUEUED).await?;
    let accepted = AtomicUsize::new(0);
    let rounds = async {
        until("all wait", LIMIT, || accepted.load(Ordering::Relaxed) == QUEUED).await?;
        let mut found = Vec::with_capacity(ROUNDS);
        for number in 0..ROUNDS {
            found.push(round(&farm, &shell, number, &settings).await? * 1000.0);
        }
        Ok::<_, BenchError>(found)
    };
    let mut found = tokio::select! {
        found = rounds => found?,
        ended = shell.execute_all("", &actions, &accepted) => {
            ended?;
            return Err(BenchError::plain("an action ended that should wait"));
        }
    };
    farm.stop().await;
    // From the first heartbeat of an executor until all of its slots run actions.
    let (median, worst) = median_and_worst(&mut found);
    let name = format!("{QUEUED} wait, {SLOTS} slots join: full, {ROUNDS} times");
    let mut figures = Figures::default();
    figures.field("queued", QUEUED).field("slots", SLOTS).field("rounds", ROUNDS);
    figures.figure("full_ms", &name, median, "ms").figure("worst_ms", "the same, worst", worst, "ms");
    Ok(figures)
}

async fn round(
    farm: &BenchFarm,
    shell: &Shell,
    number: usize,
    settings: &[(&str, &str)],
) -> Result<f64, BenchError> {
    let failed = |error: &dyn std::error::Error| BenchError::new("listening for heartbeats", error);
    let bus = farm.client.bus();
    let mut heartbeats = bus.listen::<ExecutorHeartbeat>(&()).await.map_err(|error| failed(&error))?;
    bus.flush(LIMIT).await.map_err(|error| failed(&error))?;
    let first = tokio::spawn(async move { heartbeats.next().await.map(|_| SystemTime::now()) });
    clear(shell)?;
    let executor = farm.executor(&format!("joins-{number}"), settings).await?;
    until("it is full", LIMIT, || marks(shell).len() >= SLOTS).await?;
    let first = first.await.map_err(|error| failed(&error))?;
    let first = first.ok_or_else(|| BenchError::plain("an executor joined without a heartbeat"))?;
    let last = marks(shell).into_iter().max().unwrap_or(first);
    executor.end(Signal::SIGTERM).await;
    Ok(last.duration_since(first).unwrap_or_default().as_secs_f64())
}

/// Start time of each run.
fn marks(shell: &Shell) -> Vec<SystemTime> {
    let entries = std::fs::read_dir(shell.marks()).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()?.modified().ok()).collect()
}

fn clear(shell: &Shell) -> Result<(), BenchError> {
    for entry in std::fs::read_dir(shell.marks()).into_iter().flatten().flatten() {
        std::fs::remove_file(entry.path()).map_err(|error| BenchError::new("clearing marks", &error))?;
    }
    Ok(())
}
