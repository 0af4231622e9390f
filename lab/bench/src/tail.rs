//! Tail latency of actions with one slow executor among twenty, without and with hedged copies.
//!
//! Actions arrive as a Poisson process, independent of earlier ones, with a load of 30 % of all slots. Affinity is off.
//! Executors have one slot; the slow one needs twenty times as long for each action and has
//! two slots. (Late binding already assigns few actions to a slow executor: with one slot it would get 1 of 20 x 20 x
//! 0.3 actions, less than one in a hundred, which no 99th percentile would show.)

use std::{sync::Arc, time::Duration};

use command_line::failure::say;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    shell::{Shell, arrivals, until},
    statistics::Percentiles,
};

const EXECUTORS: usize = 20;
const SLOTS: f64 = 21.0;
const LOAD: f64 = 0.3;
const SECONDS: f64 = 0.2;
const SLOW: &str = "slow";
/// Hedge delay: three times the length of an action.
const DELAY_MS: &str = "600";
const SPAN: Duration = Duration::from_secs(60);
/// Number of actions that run first to build up history.
const WARM_UP: usize = 100;
const SEED: u64 = 11;

/// Results of one round.
struct Round {
    ms: Percentiles,
    actions: usize,
    runs: usize,
    slow: usize,
}

/// Runs the scenario `tail`.
pub(crate) async fn measure() -> Result<Figures, BenchError> {
    say("20 executors, one of them slow, without copies");
    let off = round(&[]).await?;
    say("20 executors, one of them slow, with a copy after a delay");
    let delay = [("FOREBAY_ACTION_HEDGES", "1"), ("FOREBAY_ACTION_HEDGE_DELAY_MS", DELAY_MS)];
    let delay = round(&delay).await?;
    say("20 executors, one of them slow, with a copy by history");
    let history = [("FOREBAY_ACTION_HEDGES", "1"), ("FOREBAY_ACTION_HEDGE_BY_HISTORY", "true")];
    let history = round(&history).await?;
    let mut figures = Figures::default();
    let name = format!("one slow of 20, {} actions, no copies, p50", off.actions);
    figures.field("actions", off.actions).field("off_ms", off.ms);
    figures.line(&name, off.ms.p50, "ms").line("no copies, p99", off.ms.p99, "ms");
    let slow = 100.0 * off.slow as f64 / off.actions as f64;
    figures.figure("slow_percent", "of these, on the slow executor", slow, "%");
    for (key, name, round) in [("delay", "a delay", delay), ("history", "history", history)] {
        let falls = 100.0 * (1.0 - round.ms.p99 / off.ms.p99);
        let extra = 100.0 * (round.runs as f64 / round.actions as f64 - 1.0);
        let mut part = Figures::default();
        part.percentiles("ms", &format!("copies by {name}"), round.ms, "ms");
        part.figure("p99_falls_percent", &format!("copies by {name}, p99 falls by"), falls, "%");
        part.figure("extra_runs_percent", &format!("copies by {name}, additional runs"), extra, "%");
        figures.part(key, part);
    }
    Ok(figures)
}

async fn round(hedging: &[(&str, &str)]) -> Result<Round, BenchError> {
    let mut settings = vec![("FOREBAY_ACTION_AFFINITY", "false")];
    settings.extend_from_slice(hedging);
    let farm = BenchFarm::of_actions(&settings).await?;
    let mut executors = vec![farm.executor(SLOW, &[("FOREBAY_EXECUTOR_SLOTS", "2")]).await?];
    for number in 1..EXECUTORS {
        let one = [("FOREBAY_EXECUTOR_SLOTS", "1")];
        executors.push(farm.executor(&format!("fast-{number}"), &one).await?);
    }
    let shell = Arc::new(Shell::new(&farm, 4).await?);
    let folder = shell.marks().display();
    let script = format!(
        "echo $PWD >> {folder}/runs; case $PWD in */{SLOW}/*) sleep {} ;; *) sleep {SECONDS} ;; esac",
        SECONDS * 20.0
    );
    let times = arrivals(LOAD * SLOTS / SECONDS, SPAN, SEED);
    for action in shell.upload_many(&script, &[], WARM_UP).await? {
        spawned(&shell, action, Duration::from_millis(40)).await?;
    }
    settle(&shell).await?;
    let before = shell.lines("runs").len();
    let actions = shell.upload_many(&script, &[], times.len()).await?;
    let begun = tokio::time::Instant::now();
    let running: Vec<_> = actions
        .into_iter()
        .zip(times)
        .map(|(action, at)| {
            let shell = Arc::clone(&shell);
            tokio::spawn(async move {
                tokio::time::sleep_until(begun + at).await;
                shell.execute(&action).await
            })
        })
        .collect();
    let mut took = Vec::with_capacity(running.len());
    for one in running {
        let ran = one.await.map_err(|error| BenchError::new("an action of the benchmark", &error))??;
        took.push(ran.took.as_secs_f64() * 1000.0);
    }
    let runs = shell.lines("runs");
    let new = runs.get(before..).unwrap_or_default();
    let slow = new.iter().filter(|place| executors.first().is_some_and(|slow| slow.has(place))).count();
    farm.stop().await;
    let ms = Percentiles::of(&mut took);
    Ok(Round { ms, actions: took.len(), runs: new.len(), slow })
}

/// Starts an action and waits for `pause`, not for the end of the action.
async fn spawned(shell: &Arc<Shell>, action: model::BlobDigest, pause: Duration) -> Result<(), BenchError> {
    let shell = Arc::clone(shell);
    tokio::spawn(async move { shell.execute(&action).await.map(drop) });
    tokio::time::sleep(pause).await;
    Ok(())
}

/// Waits until all warm-up actions have ended.
async fn settle(shell: &Shell) -> Result<(), BenchError> {
    until("the warm-up has begun", SPAN, || shell.lines("runs").len() >= WARM_UP).await?;
    tokio::time::sleep(Duration::from_secs_f64(SECONDS * 21.0)).await;
    Ok(())
}
