//! Time until an executor is full that joins while ten thousand actions wait.

use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime},
};

use model::ExecutorHeartbeat;
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    progress::say,
    report::line,
    shell::{Shell, median, until},
};

const ROUNDS: usize = 20;
const QUEUED: usize = 10_000;
const SLOTS: usize = 16;
const LIMIT: Duration = Duration::from_secs(60);

/// Figures of the scenario.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Join {
    queued: usize,
    slots: usize,
    rounds: usize,
    /// Milliseconds from the first heartbeat of an executor until all of its slots run actions: the median.
    full_ms: f64,
    /// The largest of these times.
    worst_ms: f64,
}

/// Runs the scenario `join`.
pub(crate) async fn measure() -> Result<Join, BenchError> {
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
    let full_ms = median(&mut found);
    let worst_ms = found.last().copied().unwrap_or_default();
    Ok(Join { queued: QUEUED, slots: SLOTS, rounds: ROUNDS, full_ms, worst_ms })
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

impl fmt::Display for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queued, slots, rounds, .. } = self;
        let name = format!("{queued} wait, {slots} slots join: full, {rounds} times");
        line(f, &name, Some(self.full_ms), "ms")?;
        line(f, "the same, worst", Some(self.worst_ms), "ms")
    }
}
